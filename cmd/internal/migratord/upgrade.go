package migratord

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/policies"
)

// statePeriod is how often an earlier process says what it still runs.
const statePeriod = 250 * time.Millisecond

// FollowPredecessor counts what the process before this one still runs for the replica's,
// and passes on to it what peers say about that, until it has ended or ctx has.
// It closes the link. A nil link says that it has ended already.
func (d *Daemon) FollowPredecessor(ctx context.Context, link Link) {
	defer d.predecessor.disconnect()
	if link == nil {
		return
	}
	words, over := d.predecessor.connect(), make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			select {
			case b := <-words:
				// What it does not take is lost, and said again by who said it.
				_ = link.Send(b)
			case <-over:
				return
			}
		}
	})
	receiveMessages(ctx, link, func(kind byte, b []byte) {
		if kind != stateMessage {
			return
		}
		s, err := decodeState(b)
		if err != nil {
			d.cfg.Logger.Warn("the process before this one says what it runs in a way that this one does not know", "error", err)
			return
		}
		d.predecessor.setState(s)
		if b, err := encodeMessage(controlUpdateMessage, d.controlView.update()); err == nil {
			d.predecessor.send(b)
		}
	})
	close(over)
	sender.Wait()
}

// ServeSuccessor has this process, which has handed over, go on for its streams alone:
// it tells its successor what it runs, and still sells and hands over what it
// has, until its successor has ended or ctx has. It closes the link.
func (d *Daemon) ServeSuccessor(ctx context.Context, link Link) {
	over := make(chan struct{})
	var teller sync.WaitGroup
	teller.Go(func() {
		tick := time.NewTicker(statePeriod)
		defer tick.Stop()
		for {
			if b, err := encodeState(d.ownState()); err == nil {
				_ = link.Send(b) // the next one says it all again
			}
			select {
			case <-tick.C:
			case <-over:
				return
			}
		}
	})
	receiveMessages(ctx, link, func(kind byte, b []byte) {
		switch kind {
		case controlUpdateMessage:
			var o controlUpdate
			if json.Unmarshal(b, &o) == nil {
				d.applyControlUpdate(o)
			}
		case envelopeMessage:
			e := new(api.Envelope)
			if proto.Unmarshal(b, e) == nil && d.market != nil {
				d.receive(policies.ReplicaID(e.GetFrom()), e)
			}
		}
	})
	close(over)
	teller.Wait()
}

// receiveMessages takes words until the link ends, which it does with ctx.
func receiveMessages(ctx context.Context, link Link, take func(kind byte, b []byte)) {
	defer context.AfterFunc(ctx, func() { link.Close() })()
	defer link.Close()
	for {
		b, err := link.Receive()
		if err != nil {
			return
		}
		if len(b) > 0 {
			take(b[0], b[1:])
		}
	}
}

// Status is the state of the replica: what this process runs, and what the one
// before it still does.
func (d *Daemon) Status() frontend.Status {
	return d.predecessor.currentState().addToStatus(d.frontend.Status())
}

// ownState is what this process adds to the replica once it has handed over, and
// what the process before it, should that still live, does.
func (d *Daemon) ownState() predecessorState {
	st, x := d.Status(), d.reportExtra()
	s := predecessorState{Load: st.Load, Flow: st.Flow, Snapshot: st.Snapshot, Residents: x.Residents, Pinned: x.Pinned, PinnedSeconds: x.PinnedSeconds, Streams: x.Streams}
	for _, m := range x.Migrations {
		if b, err := proto.Marshal(m); err == nil {
			s.Migrations = append(s.Migrations, b)
		}
	}
	return s
}

// isForPredecessor reports whether an envelope is about what an earlier process of this
// replica began: what it has put up for sale, or streams of its clients. Deals
// and streams are numbered on from the time at which their process was born.
func (d *Daemon) isForPredecessor(e *api.Envelope) bool {
	before := func(n uint64) bool { return n < uint64(d.startedAt.UnixMicro()) }
	switch b := e.Body.(type) {
	case *api.Envelope_Market:
		return b.Market.GetSeller() == string(d.id) && before(b.Market.GetNumber())
	case *api.Envelope_Transfer:
		t := b.Transfer
		switch transfer.Kind(t.GetKind()) {
		case transfer.Commit, transfer.Query: // for the front of the request
			front, number, ok := strings.Cut(t.GetRequest(), "/")
			n, err := strconv.ParseUint(number, 10, 64)
			return ok && err == nil && front == string(d.id) && before(n)
		}
		return t.GetSeller() == string(d.id) && before(t.GetNumber())
	}
	return false
}
