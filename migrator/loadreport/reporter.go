// Package loadreport keeps a front's load report streams to the control planes
// (xds/api, Fleet.Report): all of them hear every report, so that whoever plans
// next knows the loads, and the one with the newest plan is listened to.
//
// It carries state one way and a reply back; it decides nothing. The invariant
// it keeps: nothing that the control plane does or fails to do reaches the
// front. A report is the whole state, so that a lost one is made good by the
// next, and nothing is queued; of moves, a report has what the control plane is
// not known to have heard.
package loadreport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// The defaults and bounds of the stream.
const (
	defaultInterval = 500 * time.Millisecond
	minRetryDelay   = 100 * time.Millisecond // before the second attempt to connect
	// maxRetryDelay and longestBackoff together are well below the time for which
	// a control plane that starts takes silent replicas for ready, 5 s: one that
	// was away for long must not find the fleet gone.
	maxRetryDelay = time.Second
	maxDialDelay  = time.Second // between two dials
	dialTimeout   = 5 * time.Second
	// replyTimeout is how long the control plane may leave reports unanswered before
	// the stream is given up. It answers each.
	replyTimeout = 10 * time.Second
	// staleReply is how long a control plane may leave reports unanswered before
	// another one is listened to whose plan is no newer.
	staleReply = 3 * time.Second
)

// Config is what an Uplink needs.
type Config struct {
	// Conn leads to the control plane. The caller owns it, and with it the
	// address and the TLS, and makes it with ConnectParams. Required.
	Conn grpc.ClientConnInterface
	// Others lead to the other control planes of the fleet, where there are any.
	Others []grpc.ClientConnInterface
	// Replica and Model name whom the reports are about. Required.
	Replica policies.ReplicaID
	Model   string
	// Status gives the state to report; Front.Status does. It is called once at a
	// time. Required.
	Status func() frontend.Status
	// Extra gives what reports say beyond the front's state. It is called for
	// each report, after Source and like it once at a time, and must not block;
	// what it returns is not changed, and must not be afterwards. nil: nothing.
	Extra func() Extra
	// OnReply is told of every reply that counts, at once, in order and one at a
	// time; it must not hold that up. Whatever Last would return next is the same.
	// nil: nobody.
	OnReply func(Reply)
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
	// Migrations are the moves that go on and those that have ended lately, in any
	// order, with names that stay and a state that changes; see LoadReport.moves.
	// All may be given every time: a move is told when it is new or has changed,
	// and until the control plane has answered.
	Migrations []*api.Migration
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
	// Slots are the policy slots of the replica's host; what is more than
	// LoadReport.slots takes is left out.
	Slots []*api.SlotStatus
	// Site is where the replica's KV cache is; nil for nothing to tell. It may be given
	// every time, and is another one when it says something else: it is told when it
	// is new to the stream, and until the control plane has answered.
	Site *api.Site
}

// ConnectParams is the dial option for Config.Conn. By gRPC's own, a connection
// would be tried every two minutes once its server has been away for a while.
func ConnectParams() grpc.DialOption {
	pause := backoff.DefaultConfig
	pause.BaseDelay, pause.MaxDelay = minRetryDelay, maxDialDelay
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: dialTimeout})
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Replica == "" || c.Model == "":
		return c, errors.New("uplink: Replica and Model must not be empty; name whom the reports are about")
	case c.Conn == nil:
		return c, fmt.Errorf("uplink of %s: Conn is nil; give it a connection to the control plane", c.Replica)
	case slices.Contains(c.Others, nil):
		return c, fmt.Errorf("uplink of %s: one of Others is nil; give it a connection to a control plane", c.Replica)
	case c.Status == nil:
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

// Reply is the last word of the control plane that is listened to.
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
	// ReceivedAt is when the reply came; the zero time before the first.
	ReceivedAt time.Time
}

// Reporter is the report streams of one replica.
type Reporter struct {
	cfg     Config
	streams []*reportStream

	sourceMu sync.Mutex // held while Source and Extra are called

	mu      sync.Mutex // held while Replied is called
	replies []Reply    // the last of each link
	current int        // the link that is listened to
	last    Reply
}

// New returns an Uplink; it starts nothing. The error names the field of the
// configuration that is wrong.
func New(cfg Config) (*Reporter, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	u := &Reporter{cfg: cfg}
	for i, conn := range append([]grpc.ClientConnInterface{cfg.Conn}, cfg.Others...) {
		u.streams = append(u.streams, &reportStream{reporter: u, index: i, conn: conn, changed: make(chan struct{}, 1)})
	}
	u.replies = make([]Reply, len(u.streams))
	return u, nil
}

// LastReply returns the last reply that counts. It may be called by any goroutine.
func (u *Reporter) LastReply() Reply {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last
}

// Run reports until ctx ends, and returns nil then. While a control plane is
// away it tries again, at growing and random intervals.
func (u *Reporter) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for _, l := range u.streams {
		all.Go(func() { l.run(ctx) })
	}
	for {
		select {
		case <-u.cfg.Changed:
			for _, l := range u.streams {
				l.reportNow()
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// buildReport makes a report with the state as it is.
func (u *Reporter) buildReport(sequence uint64, m *migrationDelta, where *topologyDelta) *api.LoadReport {
	u.sourceMu.Lock()
	defer u.sourceMu.Unlock()
	var x Extra
	if u.cfg.Extra != nil {
		x = u.cfg.Extra()
	}
	x.Migrations = m.pending(x.Migrations, sequence)
	x.Site = where.pending(x.Site, sequence)
	return encodeReport(u.cfg.Replica, u.cfg.Model, sequence, u.cfg.Status(), x)
}

// handleReply takes in a reply of a link, and passes it on if it counts.
func (u *Reporter) handleReply(from int, reply Reply) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.replies[from] = reply
	if u.current = selectStream(u.replies, u.current, reply.ReceivedAt); u.current != from {
		return
	}
	u.last = reply
	if u.cfg.OnReply != nil {
		u.cfg.OnReply(reply)
	}
}

// selectStream is the link to listen to: of those that answered lately the one with the
// newest plan, and of equals the one that is listened to, so that two control
// planes of which one is behind for a moment do not take turns.
func selectStream(replies []Reply, heeded int, now time.Time) int {
	best := -1
	for i, r := range replies {
		switch {
		case r.ReceivedAt.IsZero() || now.Sub(r.ReceivedAt) > staleReply:
		case best < 0, r.Epoch > replies[best].Epoch, r.Epoch == replies[best].Epoch && i == heeded:
			best = i
		}
	}
	return max(best, 0)
}
