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
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/policies"
)

// statePeriod is how often a preceding process sends its state.
const statePeriod = 250 * time.Millisecond

// FollowPredecessor adds the requests that the preceding process still runs to the replica's state,
// and forwards peers' messages about them to that process. It returns when the process or ctx ends,
// and closes the link. A nil link means that the process has already ended.
func (d *Daemon) FollowPredecessor(ctx context.Context, link Link) {
	defer d.predecessor.disconnect()
	if link == nil {
		return
	}
	messages, done := d.predecessor.connect(), make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			select {
			case b := <-messages:
				// A dropped message is lost; its sender sends it again.
				_ = link.Send(b)
			case <-done:
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
			d.cfg.Logger.Warn("state of the preceding process rejected; its streams are not counted", "error", err)
			return
		}
		d.predecessor.setState(s)
		if b, err := encodeMessage(controlUpdateMessage, d.controlView.update()); err == nil {
			d.predecessor.send(b)
		}
	})
	close(done)
	sender.Wait()
}

// ServeSuccessor serves the remaining streams of this process after it has handed over: it reports
// them to its successor, and still sells and migrates its requests, until the successor or ctx
// ends. It closes the link.
func (d *Daemon) ServeSuccessor(ctx context.Context, link Link) {
	done := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		tick := time.NewTicker(statePeriod)
		defer tick.Stop()
		for {
			if b, err := encodeState(d.ownState()); err == nil {
				_ = link.Send(b) // the next message repeats the whole state
			}
			select {
			case <-tick.C:
			case <-done:
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
	close(done)
	reporter.Wait()
}

// receiveMessages passes messages to handle until the link or ctx ends.
func receiveMessages(ctx context.Context, link Link, handle func(kind byte, b []byte)) {
	defer context.AfterFunc(ctx, func() { link.Close() })()
	defer link.Close()
	for {
		b, err := link.Receive()
		if err != nil {
			return
		}
		if len(b) > 0 {
			handle(b[0], b[1:])
		}
	}
}

// Status returns the state of the replica: of this process and of the preceding one while it runs.
func (d *Daemon) Status() frontend.Status {
	return d.predecessor.currentState().addToStatus(d.frontend.Status())
}

// ownState returns what this process contributes to the replica's state once it has handed over,
// including its own predecessor if that still runs.
func (d *Daemon) ownState() predecessorState {
	st, r := d.Status(), d.report()
	s := predecessorState{Load: st.Load, Flow: st.Flow, Snapshot: st.Snapshot, Residents: r.Residents, Pinned: r.Pinned, PinnedSeconds: r.PinnedSeconds, Streams: r.Streams}
	for _, m := range r.Migrations {
		if b, err := proto.Marshal(m); err == nil {
			s.Migrations = append(s.Migrations, b)
		}
	}
	return s
}

// isForPredecessor reports whether an envelope concerns a deal or stream that an earlier process of
// this replica began: an offer of its own, or a stream of its clients. Numbers of deals and streams
// begin with the start time of their process.
func (d *Daemon) isForPredecessor(e *api.Envelope) bool {
	before := func(n uint64) bool { return n < uint64(d.startedAt.UnixMicro()) }
	switch b := e.Body.(type) {
	case *api.Envelope_Market:
		return b.Market.GetSeller() == string(d.id) && before(b.Market.GetNumber())
	case *api.Envelope_Transfer:
		t := b.Transfer
		switch move.Kind(t.GetKind()) {
		case move.Commit, move.Query: // to the front end of the request
			front, number, ok := strings.Cut(t.GetRequest(), "/")
			n, err := strconv.ParseUint(number, 10, 64)
			return ok && err == nil && front == string(d.id) && before(n)
		}
		return t.GetSeller() == string(d.id) && before(t.GetNumber())
	}
	return false
}
