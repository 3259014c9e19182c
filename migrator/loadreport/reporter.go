// Package loadreport sends a replica's load reports to the control planes (xds/api,
// Fleet.Report). Every control plane receives every report, so that each can take over
// planning; the replica obeys the one with the newest plan.
//
// A Reporter has one stream to each control plane and passes on the replies of the control
// plane that it obeys. It makes no decisions.
//
// Invariants:
//
//  1. The front end is independent of anything that a control plane does or fails to do.
//  2. A report is the whole state: the next one replaces a lost one, and nothing is queued.
//     Of migrations it contains the states that the control plane has not acknowledged.
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

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Defaults and limits.
const (
	defaultInterval = 500 * time.Millisecond
	minRetryDelay   = 100 * time.Millisecond // before the second attempt to connect
	// maxRetryDelay and maxDialDelay together are well below the 5 s for which a starting
	// control plane counts silent replicas as ready: after a long outage it must not find
	// the fleet gone.
	maxRetryDelay = time.Second
	logEvery      = time.Minute // between two log lines of one outage, if its error changes
	maxDialDelay  = time.Second // between two dials
	dialTimeout   = 5 * time.Second
	// replyTimeout is how long reports may stay unanswered before the stream is closed. The
	// control plane answers each report.
	replyTimeout = 10 * time.Second
	// staleReply is the age of a control plane's last reply beyond which another one is
	// obeyed even if its plan is not newer.
	staleReply = 3 * time.Second
)

// Config configures a Reporter.
type Config struct {
	// Conn is the connection to the control plane, created with ConnectParams. The caller
	// owns it, with address and TLS. Required.
	Conn grpc.ClientConnInterface
	// Others are the connections to the other control planes of the fleet, if any.
	Others []grpc.ClientConnInterface
	// Replica and Model are the subject of the reports. Required.
	Replica policies.ReplicaID
	Model   string
	// Report returns a new report of the present state, without Replica, Model and Sequence. Of the migrations and the
	// topology, all may be returned every time: a migration is reported when it is new or has changed, and a topology
	// when its pointer is another one, until the control plane has acknowledged it. Report is not called
	// concurrently, and must not block. Required.
	Report func() *api.LoadReport
	// OnReply is called for every reply of the control plane that is obeyed, immediately, in order
	// and not concurrently; it must not block, and must not change the reply. It may be nil.
	OnReply func(*api.LoadReply)
	// Changed holds a token when a report should be sent at once, as
	// frontend.Server.Changed does. nil leaves all reports to the interval.
	Changed <-chan struct{}
	// Interval is the time between two reports; 0 means 500 ms.
	Interval time.Duration
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// ConnectParams is the dial option for Config.Conn. With gRPC's defaults, a connection to a
// server that was down for long would be retried only every two minutes.
func ConnectParams() grpc.DialOption {
	pause := backoff.DefaultConfig
	pause.BaseDelay, pause.MaxDelay = minRetryDelay, maxDialDelay
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: dialTimeout})
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Replica == "" || c.Model == "":
		return c, errors.New("load reporter: Replica and Model are required")
	case c.Conn == nil:
		return c, fmt.Errorf("load reporter of %s: Conn is required: a connection to the control plane", c.Replica)
	case slices.Contains(c.Others, nil):
		return c, fmt.Errorf("load reporter of %s: Others contains a nil connection", c.Replica)
	case c.Report == nil:
		return c, fmt.Errorf("load reporter of %s: Report is required", c.Replica)
	case c.Interval < 0:
		return c, fmt.Errorf("load reporter of %s: Interval %v must not be negative", c.Replica, c.Interval)
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// lastReply holds parts of the last reply of a control plane. The zero value means that none has come yet.
type lastReply struct {
	epoch uint64 // of the plan for the replica's model
	at    time.Time
}

// Reporter sends the load reports of one replica.
type Reporter struct {
	cfg     Config
	streams []*reportStream

	sourceMu sync.Mutex // held while Report is called

	mu      sync.Mutex  // held while OnReply is called
	replies []lastReply // of each stream
	current int         // index of the stream that is obeyed
}

// New returns a Reporter and starts nothing. The error names the invalid field of cfg.
func New(cfg Config) (*Reporter, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	u := &Reporter{cfg: cfg}
	for i, conn := range append([]grpc.ClientConnInterface{cfg.Conn}, cfg.Others...) {
		u.streams = append(u.streams, &reportStream{reporter: u, index: i, conn: conn, changed: make(chan struct{}, 1)})
	}
	u.replies = make([]lastReply, len(u.streams))
	return u, nil
}

// Run reports until ctx ends and returns nil then. It reconnects to a control plane with
// random, growing delays.
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

// buildReport returns a report of the current state, without what the control plane knows.
func (u *Reporter) buildReport(sequence uint64, known *delta) *api.LoadReport {
	u.sourceMu.Lock()
	defer u.sourceMu.Unlock()
	r := u.cfg.Report()
	r.Replica, r.Model, r.Sequence = string(u.cfg.Replica), u.cfg.Model, sequence
	known.cut(r)
	return r
}

// handleReply passes a stream's reply on if its stream is the one that is obeyed.
func (u *Reporter) handleReply(from int, reply *api.LoadReply) {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.replies[from] = lastReply{reply.GetEpoch(), now}
	if u.current = selectStream(u.replies, u.current, now); u.current != from {
		return
	}
	if u.cfg.OnReply != nil {
		u.cfg.OnReply(reply)
	}
}

// selectStream returns the index of the stream to obey: of those with a recent reply, the one with
// the newest plan. Among equals it keeps the current one, so that the choice does not alternate
// when one of two control planes lags for a moment.
func selectStream(replies []lastReply, heeded int, now time.Time) int {
	best := -1
	for i, r := range replies {
		switch {
		case r.at.IsZero() || now.Sub(r.at) > staleReply:
		case best < 0, r.epoch > replies[best].epoch, r.epoch == replies[best].epoch && i == heeded:
			best = i
		}
	}
	return max(best, 0)
}
