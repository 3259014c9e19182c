package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/internal/zmtp"
)

// Pauses and limits in time.
const (
	// quietAfter is how long no batch comes until the Subscriber asks whether one was lost. It
	// doubles, up to mostQuiet, while the answer is that none was.
	quietAfter = 5 * time.Second
	mostQuiet  = time.Minute
	// answerTimeout is how long an engine may take for the next answer of a replay, and
	// replayTimeout for all.
	answerTimeout = 10 * time.Second
	replayTimeout = 2 * time.Minute
	// replayPause is the least time between two replays. It doubles with each that is in vain.
	replayPause = time.Second
	// openPause is the least time between two attempts to listen or to connect.
	openPause = time.Second
)

// message is what a goroutine of a Subscriber reports to the one that applies events.
type message struct {
	kind    messageKind
	conn    *zmtp.Conn // of connected, disconnected and live
	replay  int        // of answer, replayEnd and replayFailed: which one
	seq     uint64
	payload []byte
	err     error
}

type messageKind uint8

const (
	connected messageKind = iota
	disconnected
	live
	answer
	replayEnd
	replayFailed
	rejected // a message that is no batch
	refused  // a connection on which no publisher was found
)

// run is what one Run owns. Only its loop touches it.
type run struct {
	*Subscriber
	group    *errgroup.Group
	messages chan message
	order    order
	decoder  Decoder

	conn       *zmtp.Conn // the engine's newest one, nil for none
	replay     int        // counts replays
	stopReplay context.CancelFunc
	lastReplay time.Time
	quiet      time.Duration
	live       bool
	warned     bool // of a malformed batch on this connection
	refused    bool // a connection, since the last one that was not
}

// Run subscribes until ctx ends, whatever happens to the engine. It returns nil, after all its
// goroutines have ended. It is called once.
func (s *Subscriber) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	r := &run{
		Subscriber: s, group: group, messages: make(chan message), order: order{replays: s.cfg.Replay != ""},
		decoder: Decoder{Model: s.cfg.Model, Rank: s.cfg.Rank}, stopReplay: func() {}, quiet: quietAfter,
	}
	group.Go(func() error {
		if s.cfg.Listen != "" {
			r.listen(ctx)
		} else {
			r.dial(ctx)
		}
		return nil
	})
	group.Go(func() error {
		r.loop(ctx)
		return nil
	})
	return group.Wait()
}

// loop handles messages until ctx ends.
func (r *run) loop(ctx context.Context) {
	defer func() {
		r.stopReplay()
		r.setLive(false)
		if r.conn != nil {
			r.conn.Close()
		}
	}()
	timer := time.NewTimer(r.quiet)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-r.messages:
			if m.kind == live && m.conn == r.conn {
				r.quiet = quietAfter
				timer.Reset(r.quiet)
			}
			r.do(ctx, r.handle(m))
		case <-timer.C:
			r.do(ctx, r.order.quiet())
			r.quiet = min(2*r.quiet, mostQuiet)
			timer.Reset(r.quiet)
		}
		r.setLive(r.order.synced)
		r.publish()
	}
}

// handle passes a message to the state machine.
func (r *run) handle(m message) []todo {
	switch m.kind {
	case connected:
		if r.conn != nil {
			r.conn.Close() // an engine that restarts leaves its former connection, at worst
			r.order.disconnect()
		}
		r.conn, r.warned, r.refused = m.conn, false, false
		r.mu.Lock()
		r.status.Connections++
		r.mu.Unlock()
		r.cfg.Log.Info("engine connected to publish KV events")
		return r.order.connect()
	case disconnected:
		m.conn.Close()
		if m.conn != r.conn {
			return nil
		}
		r.conn = nil
		r.stopReplay()
		r.order.disconnect()
		r.cfg.Log.Warn("engine's KV events ended: what it has cached is estimated until it publishes again", "cause", m.err)
	case live:
		if m.conn == r.conn {
			return r.order.receive(m.seq, m.payload)
		}
	case refused:
		if !r.refused {
			r.refused = true
			r.cfg.Log.Warn("connection for KV events failed: check what connects there, and that the engine's kv-events-config has this endpoint", "cause", m.err)
		}
		fallthrough
	case rejected:
		r.mu.Lock()
		r.status.Rejected++
		r.mu.Unlock()
	case answer:
		if m.replay == r.replay {
			return r.order.answer(m.seq, m.payload)
		}
	case replayEnd:
		if m.replay == r.replay {
			return r.order.end()
		}
	case replayFailed:
		if m.replay == r.replay {
			r.cfg.Log.Debug("replay of KV events failed", "cause", m.err)
			return r.order.fail()
		}
	}
	return nil
}

// do does what the state machine wants.
func (r *run) do(ctx context.Context, todos []todo) {
	for _, t := range todos {
		switch t.action {
		case clearIndex:
			r.setLive(false)
			r.cfg.Index.Clear()
		case applyBatch:
			r.apply(t)
		case askReplay:
			r.startReplay(ctx, t.seq)
		}
	}
}

// apply applies a batch. A malformed one changes nothing: it would be the same in a replay.
func (r *run) apply(t todo) {
	if err := r.decoder.Decode(t.payload); err != nil {
		r.mu.Lock()
		if errors.Is(err, ErrRank) {
			r.status.OtherRank++
		} else {
			r.status.Malformed++
		}
		r.mu.Unlock()
		if !r.warned {
			r.warned = true
			r.cfg.Log.Warn("dropped a batch of KV events: check that nothing else publishes to this address, and the engine's version", "batch", t.seq, "cause", err)
		}
		return
	}
	r.decoder.Apply(r.cfg.Index)
}

// setLive reports a change of whether the Index is what the engine holds.
func (r *run) setLive(now bool) {
	if now != r.live {
		r.live = now
		r.cfg.SetLive(now)
	}
}

// publish updates the Status.
func (r *run) publish() {
	c := &r.order.counts
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.status
	s.Connected, s.Live, s.Ignored = r.conn != nil, r.live, r.decoder.Ignored
	s.Batches = c.applied - s.Malformed - s.OtherRank
	s.Duplicates, s.Gaps, s.Lost = c.duplicates, c.gaps, c.lost
	s.Restarts, s.Replays, s.Failed = c.restarts, c.replays, c.failed
}

// report hands a message to the loop. It returns false if the Subscriber ends.
func (r *run) report(ctx context.Context, m message) bool {
	select {
	case r.messages <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause waits. It returns false if ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// parseBatch returns number and payload of a batch's frames: topic, number, payload. The
// payload is a copy.
func (r *run) parseBatch(frames [][]byte) (seq uint64, payload []byte, ok bool) {
	if len(frames) != 3 || string(frames[0]) != r.cfg.Topic {
		return 0, nil, false
	}
	return parseNumbered(frames[1], frames[2])
}

func parseNumbered(number, body []byte) (seq uint64, payload []byte, ok bool) {
	if len(number) != 8 {
		return 0, nil, false
	}
	if seq = binary.BigEndian.Uint64(number); seq == endOfReplay {
		return 0, nil, false
	}
	return seq, bytes.Clone(body), true
}

// endOfReplay is the number of the message that ends a replay.
const endOfReplay = 1<<64 - 1
