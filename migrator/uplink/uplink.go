// Package uplink keeps a replica's load report stream to the control plane.
//
// It counts nothing and decides nothing: the front counts, the control plane
// decides. The invariant: whatever happens to the control plane, the front is
// not held up, and once the stream is back the next report tells the whole
// present state.
package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/migrator/stream"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Defaults of Config.
const (
	DefaultInterval   = 500 * time.Millisecond
	DefaultBackoffMin = 100 * time.Millisecond
	DefaultBackoffMax = 5 * time.Second
)

// maxReply bounds one reply of the control plane, in bytes.
const maxReply = 64 << 10

// Source tells the present state of the front. Status is called from one
// goroutine, about as often as reports are sent; *stream.Front is a Source.
type Source interface{ Status() stream.Status }

var _ Source = (*stream.Front)(nil)

// Config is what an Uplink needs.
type Config struct {
	// Replica and Model are how the control plane knows the replica. Required.
	Replica, Model string
	// Conn is the connection to the control plane. The uplink does not close it.
	// Required.
	Conn grpc.ClientConnInterface
	// Source is the front. Required.
	Source Source
	// Interval between reports; 0 means DefaultInterval. The control plane
	// takes a replica for unready when it hears nothing for some seconds.
	Interval time.Duration
	// Changed, if not nil, is received from to report at once, for instance
	// when draining begins.
	Changed <-chan struct{}
	// BackoffMin and BackoffMax bound the jittered exponential pause between
	// two streams; 0 means the defaults.
	BackoffMin, BackoffMax time.Duration
	Logger                 *slog.Logger // nil discards
}

// validate fills in the defaults and reports the first field that is wrong.
func (c Config) validate() (Config, error) {
	switch {
	case c.Replica == "" || c.Model == "":
		return c, errors.New("uplink: Replica and Model must be named")
	case c.Conn == nil || c.Source == nil:
		return c, errors.New("uplink: Conn and Source are required")
	case c.Interval < 0 || c.BackoffMin < 0 || c.BackoffMax < 0:
		return c, errors.New("uplink: Interval, BackoffMin and BackoffMax must not be negative")
	}
	for _, d := range []struct {
		v  *time.Duration
		to time.Duration
	}{{&c.Interval, DefaultInterval}, {&c.BackoffMin, DefaultBackoffMin}, {&c.BackoffMax, DefaultBackoffMax}} {
		if *d.v == 0 {
			*d.v = d.to
		}
	}
	c.BackoffMax = max(c.BackoffMax, c.BackoffMin)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Uplink keeps one report stream. Its methods may be called from any
// goroutine; Run once.
type Uplink struct {
	cfg  Config
	last atomic.Pointer[api.LoadReply]
}

// New checks the Config and starts nothing.
func New(cfg Config) (*Uplink, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	return &Uplink{cfg: cfg}, nil
}

// Reply returns the control plane's last reply, nil before the first. The
// caller must not change it.
func (u *Uplink) Reply() *api.LoadReply { return u.last.Load() }

// Run reports until ctx ends, and then returns nil. A control plane that is
// away, or refuses, is tried again after a pause.
func (u *Uplink) Run(ctx context.Context) error {
	pause := u.cfg.BackoffMin
	for {
		sent, err := u.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if sent > 0 {
			pause = u.cfg.BackoffMin
		}
		u.cfg.Logger.Warn("report stream ended", "replica", u.cfg.Replica, "reports", sent, "error", err)
		// Jitter keeps a fleet from returning to a restarted control plane at once.
		wait := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
		pause = min(2*pause, u.cfg.BackoffMax)
	}
}

// session runs one stream to its end and says how many reports were answered.
func (u *Uplink) session(ctx context.Context) (answered int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := api.NewFleetClient(u.cfg.Conn).Report(ctx, grpc.MaxCallRecvMsgSize(maxReply))
	if err != nil {
		return 0, fmt.Errorf("open: %w", err)
	}
	var replies atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := s.Recv()
			if err != nil {
				cancel(err)
				return
			}
			u.last.Store(r)
			replies.Add(1)
		}
	}()
	err = u.send(ctx, s)
	cancel(err)
	<-done
	return int(replies.Load()), err
}

// send reports at once and then every interval, until ctx ends or the stream
// breaks.
func (u *Uplink) send(ctx context.Context, s grpc.BidiStreamingClient[api.LoadReport, api.LoadReply]) error {
	tick := time.NewTicker(u.cfg.Interval)
	defer tick.Stop()
	for sequence := uint64(1); ; sequence++ {
		if err := s.Send(u.report(sequence)); err != nil {
			// The reason is in what the receiving side sees.
			<-ctx.Done()
			return context.Cause(ctx)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		case <-u.cfg.Changed:
		}
	}
}

// report renders the present state.
func (u *Uplink) report(sequence uint64) *api.LoadReport {
	st := u.cfg.Source.Status()
	f := &api.Flow{
		Arrivals: st.Flow.Arrivals, Tokens: st.Flow.Tokens, Reads: st.Flow.Reads, Prefill: st.Flow.Prefill,
		Prefill2: st.Flow.Prefill2, Weight: st.Flow.Weight, Crossings: st.Flow.Crossings, Seen: st.Flow.Seen,
		Edges: make([]int64, len(st.Flow.Edges)),
	}
	for i, e := range st.Flow.Edges {
		f.Edges[i] = int64(e)
	}
	r := &api.LoadReport{
		Replica: u.cfg.Replica, Model: u.cfg.Model, Sequence: sequence, Flow: f,
		Load: &api.Load{
			Running: uint32(st.Load.Running), Waiting: uint32(st.Load.Waiting), HeldTokens: int64(st.Load.Held),
			PromisedTokens: int64(st.Load.Promised), IterationSeconds: st.Load.Iteration,
		},
		EngineReady: st.EngineReady, Draining: st.Draining, BytesPerToken: st.BytesPerToken, EstimateError: st.EstimateError,
	}
	for _, b := range st.Snapshot {
		r.Snapshot = append(r.Snapshot, &api.Batch{N: b.N, SumInput: b.SumI, SumInput2: b.SumI2, SumLength: b.SumL})
	}
	return r
}
