package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/internal/zmtp"
)

// maxConns is how many connections are served at the same time: the newest one counts, and
// those before it end.
const maxConns = 4

// listen accepts the engine's connections. While the address is taken, as by the former process
// of this replica, it tries again.
func (r *run) listen(ctx context.Context) {
	warned := false
	for {
		l, err := r.cfg.ListenTCP(ctx, r.cfg.Listen)
		if err == nil {
			warned = false
			err = r.accept(ctx, l)
		}
		if ctx.Err() != nil {
			return
		}
		if !warned {
			warned = true
			r.cfg.Log.Warn("cannot listen for KV events, trying again: another process may use the address", "address", r.cfg.Listen, "cause", err)
		}
		if !pause(ctx, openPause) {
			return
		}
	}
}

// accept serves the connections of a listener until ctx ends or it fails.
func (r *run) accept(ctx context.Context, l net.Listener) error {
	var conns errgroup.Group
	conns.SetLimit(maxConns)
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return err
		case !pause(ctx, openPause): // for want of file descriptors, for instance
			return ctx.Err()
		default:
			continue
		}
		if !conns.TryGo(func() error {
			r.serve(ctx, c)
			return nil
		}) {
			c.Close()
		}
	}
}

// dial connects to the engine, and again when the connection ends.
func (r *run) dial(ctx context.Context) {
	for ctx.Err() == nil {
		if c, err := r.cfg.DialTCP(ctx, r.cfg.Dial); err == nil {
			r.serve(ctx, c)
		}
		if !pause(ctx, openPause) {
			return
		}
	}
}

// serve subscribes at the publisher on the other side of a connection, and reports its
// batches.
func (r *run) serve(ctx context.Context, c net.Conn) {
	defer context.AfterFunc(ctx, func() { c.Close() })()
	conn, err := zmtp.Open(c, "SUB", "PUB", "XPUB")
	if err == nil {
		err = conn.Subscribe(r.cfg.Topic)
	}
	if err != nil {
		c.Close()
		r.report(ctx, message{kind: refused, err: err})
		return
	}
	defer conn.Close()
	if !r.report(ctx, message{kind: connected, conn: conn}) {
		return
	}
	for {
		frames, err := conn.Receive(time.Hour)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue // an idle engine publishes nothing
		}
		if err != nil {
			r.report(ctx, message{kind: disconnected, conn: conn, err: fmt.Errorf("KV events from %s: %w", c.RemoteAddr(), err)})
			return
		}
		m := message{kind: live, conn: conn}
		var ok bool
		if m.seq, m.payload, ok = r.parseBatch(frames); !ok {
			m.kind = rejected
		}
		if !r.report(ctx, m) {
			return
		}
	}
}

// startReplay asks the engine for its batches from a number on, in place of the replay that
// runs.
func (r *run) startReplay(ctx context.Context, from uint64) {
	r.stopReplay()
	r.replay++
	replay := r.replay
	wait := time.Until(r.lastReplay.Add(replayPause << r.order.failures))
	r.lastReplay = time.Now().Add(max(wait, 0))
	limited, stop := context.WithTimeout(ctx, replayTimeout)
	r.stopReplay = stop
	r.group.Go(func() error {
		defer stop()
		if wait > 0 && !pause(limited, wait) {
			return nil
		}
		if err := r.readReplay(limited, replay, from); err != nil {
			r.report(ctx, message{kind: replayFailed, replay: replay, err: err}) // not counted if it was stopped
		}
		return nil
	})
}

// readReplay reports the answers of one replay.
func (r *run) readReplay(ctx context.Context, replay int, from uint64) error {
	c, err := r.cfg.DialTCP(ctx, r.cfg.Replay)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	conn, err := zmtp.Open(c, "DEALER", "ROUTER")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for {
		frames, err := conn.Receive(answerTimeout)
		if err != nil {
			return fmt.Errorf("replay from %s: %w", c.RemoteAddr(), err)
		}
		if isEnd(frames) {
			r.report(ctx, message{kind: replayEnd, replay: replay})
			return nil
		}
		m := message{kind: answer, replay: replay}
		var ok bool
		if m.seq, m.payload, ok = r.parseAnswer(frames); !ok {
			m.kind = rejected
		}
		if !r.report(ctx, m) {
			return ctx.Err()
		}
	}
}

// parseAnswer returns number and payload of an answer's frames: an empty one, the topic, the
// number, the payload. Engines that name no topic leave that frame out.
func (r *run) parseAnswer(frames [][]byte) (seq uint64, payload []byte, ok bool) {
	switch {
	case len(frames) == 4 && len(frames[0]) == 0:
		return r.parseBatch(frames[1:])
	case len(frames) == 3 && len(frames[0]) == 0:
		return parseNumbered(frames[1], frames[2])
	}
	return 0, nil, false
}

// isEnd returns whether a message ends a replay: the highest number in place of a batch's.
func isEnd(frames [][]byte) bool {
	n := len(frames)
	return (n == 3 || n == 4) && len(frames[0]) == 0 && len(frames[n-2]) == 8 && binary.BigEndian.Uint64(frames[n-2]) == endOfReplay
}
