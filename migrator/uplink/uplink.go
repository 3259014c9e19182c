// Package uplink keeps a front's load report stream to the control plane
// (xds/api, Fleet.Report).
//
// It carries state one way and a reply back; it decides nothing. The invariant
// it keeps: nothing that the control plane does or fails to do reaches the
// front. A report is the whole state, so that a lost one is made good by the
// next, and nothing is queued; of moves, a report has what the control plane is
// not known to have heard.
package uplink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/cascadeinfer/cascade/migrator/stream"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// The defaults and bounds of the stream.
const (
	defaultInterval = 500 * time.Millisecond
	firstPause      = 100 * time.Millisecond // before the second attempt to connect
	// longestPause and longestBackoff together are well below the time for which
	// a control plane that starts takes silent replicas for ready, 5 s: one that
	// was away for long must not find the fleet gone.
	longestPause   = time.Second
	longestBackoff = time.Second // between two dials
	dialTimeout    = 5 * time.Second
	// silence is how long the control plane may leave reports unanswered before
	// the stream is given up. It answers each.
	silence = 10 * time.Second
)

// Config is what an Uplink needs.
type Config struct {
	// Conn leads to the control plane. The caller owns it, and with it the
	// address and the TLS, and makes it with ConnectParams. Required.
	Conn grpc.ClientConnInterface
	// Replica and Model name whom the reports are about. Required.
	Replica policies.ReplicaID
	Model   string
	// Source gives the state to report; Front.Status does. It is called on one
	// goroutine. Required.
	Source func() stream.Status
	// Extra gives what reports say beyond the front's state. It is called for
	// each report, on the same goroutine as Source, and must not block; what it
	// returns is not changed, and must not be afterwards. nil: nothing.
	Extra func() Extra
	// Replied is told of every reply, at once and in order, on one goroutine,
	// which it must not hold up. Whatever Last would return next is the same.
	// nil: nobody.
	Replied func(Reply)
	// Changed holds a token when a report should go out at once;
	// Front.Changed gives it. nil leaves all to the interval.
	Changed <-chan struct{}
	// Interval is the time between two reports; 0 means 500 ms.
	Interval time.Duration
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

// Extra is what a report says beyond the front's state. The zero value is
// nothing.
type Extra struct {
	// Moves are the moves that go on and those that have ended lately, in any
	// order, with names that stay and a state that changes; see LoadReport.moves.
	// All may be given every time: a move is told when it is new or has changed,
	// and until the control plane has answered.
	Moves []*api.Move
	// Proposal for the end of the own stage; nil when nobody asks (Reply.Refine).
	Proposal *api.Proposal
	// Residents are the requests that run here, Pinned those of them that may
	// not move, and PinnedSeconds the time until the last of these is expected
	// to end; 0 when unknown or none.
	Residents, Pinned int
	PinnedSeconds     float64
	// Streams are those of the replica's own clients, wherever they run.
	Streams int
	// Routes are the transports by which blocks may be pulled, in the order of
	// LoadReport.routes; what does not fit there is left out.
	Routes []*api.Route
}

// ConnectParams is the dial option for Config.Conn. By gRPC's own, a connection
// would be tried every two minutes once its server has been away for a while.
func ConnectParams() grpc.DialOption {
	pause := backoff.DefaultConfig
	pause.BaseDelay, pause.MaxDelay = firstPause, longestBackoff
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: dialTimeout})
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Replica == "" || c.Model == "":
		return c, errors.New("uplink: Replica and Model must not be empty; name whom the reports are about")
	case c.Conn == nil:
		return c, fmt.Errorf("uplink of %s: Conn is nil; give it a connection to the control plane", c.Replica)
	case c.Source == nil:
		return c, fmt.Errorf("uplink of %s: Source is nil; give it the front's Status", c.Replica)
	case c.Interval < 0:
		return c, fmt.Errorf("uplink of %s: Interval %v must not be negative", c.Replica, c.Interval)
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Reply is the control plane's last word.
type Reply struct {
	// Epoch is that of the plan in force for the replica's model.
	Epoch policies.Epoch
	// StageMeanHeld is the mean of Load.Held over the replicas of the same
	// stage, in tokens; the own figure, as reported, where there is no such mean.
	StageMeanHeld float64
	// Drain says that the replica is to be emptied. It holds until a reply says
	// otherwise, also while the control plane is away.
	Drain bool
	// Refine asks for a proposal; nil while boundaries are not refined. It is
	// shared and must not be changed.
	Refine *api.Refine
	// At is when the reply came; the zero time before the first.
	At time.Time
}

// Uplink is the report stream of one replica.
type Uplink struct {
	cfg   Config
	moves moves

	mu   sync.Mutex
	last Reply
}

// New returns an Uplink; it starts nothing. The error names the field of the
// configuration that is wrong.
func New(cfg Config) (*Uplink, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	return &Uplink{cfg: cfg}, nil
}

// Last returns the control plane's last reply. It may be called by any
// goroutine.
func (u *Uplink) Last() Reply {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last
}

// Run reports until ctx ends, and returns nil then. While the control plane is
// away it tries again, at growing and random intervals.
func (u *Uplink) Run(ctx context.Context) error {
	log := u.cfg.Logger.With("replica", string(u.cfg.Replica))
	pause, was := firstPause, ""
	for {
		answered, err := u.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if answered {
			pause, was = firstPause, ""
		}
		// A control plane that is away for an hour is worth one line.
		if err.Error() != was {
			log.Warn("the control plane takes no reports; trying again", "error", err)
			was = err.Error()
		}
		wait := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil
		}
		pause = min(2*pause, longestPause)
	}
}

var errSilent = fmt.Errorf("the control plane has not answered for %v", silence)

// session reports on one stream, to its end. answered tells whether the control
// plane took anything in.
func (u *Uplink) session(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A stream that stalls in either direction is ended from outside: neither
	// Send nor Recv knows a deadline.
	watch := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watch.Stop()
	reports, err := api.NewFleetClient(u.cfg.Conn).Report(ctx)
	if err != nil {
		return false, cause(ctx, err)
	}
	var reader sync.WaitGroup
	defer reader.Wait()
	ended := make(chan error, 1)
	replies := 0
	u.moves.restart()
	reader.Go(func() {
		for {
			reply, err := reports.Recv()
			if err != nil {
				ended <- err
				return
			}
			watch.Reset(silence)
			replies++
			u.take(reply)
		}
	})
	defer cancel(nil) // before the wait for the reader

	tick := time.NewTicker(u.cfg.Interval)
	defer tick.Stop()
	for sequence := uint64(1); ; sequence++ {
		sent := reports.Send(u.report(sequence))
		if sent != nil && sent != io.EOF { // EOF: Recv knows why
			cancel(sent)
		}
		select {
		case err := <-ended:
			return replies > 0, cause(ctx, err)
		case <-tick.C:
		case <-u.cfg.Changed:
		}
	}
}

// cause returns why ctx ended if it did, else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// report makes the report of that number, with the state as it is.
func (u *Uplink) report(sequence uint64) *api.LoadReport {
	var x Extra
	if u.cfg.Extra != nil {
		x = u.cfg.Extra()
	}
	x.Moves = u.moves.news(x.Moves, sequence)
	return report(u.cfg.Replica, u.cfg.Model, sequence, u.cfg.Source(), x)
}

func (u *Uplink) take(r *api.LoadReply) {
	u.moves.heard(r.GetSequence())
	reply := Reply{
		Epoch: policies.Epoch(r.GetEpoch()), StageMeanHeld: r.GetStageMeanHeld(),
		Drain: r.GetDrain(), Refine: r.GetRefine(), At: time.Now(),
	}
	u.mu.Lock()
	u.last = reply
	u.mu.Unlock()
	if u.cfg.Replied != nil {
		u.cfg.Replied(reply)
	}
}
