// Package reportservice serves the gRPC stream Fleet.Report by which migrators send
// their load reports. It owns the streams, decides which stream reports for a replica,
// and passes every decoded report to a Handler.
//
// Invariants: at most one stream reports for a replica at a time; a stream reports for
// one replica only; a stream that sends too many, no, or invalid reports is ended.
package reportservice

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// Bounds of a report stream.
const (
	// idleTimeout ends a stream on which no report arrives: a live migrator reconnects,
	// and a dead one must not keep its replica's name.
	idleTimeout = 30 * time.Second
	// TakeOver is how long after its last report a stream may be replaced by a newer
	// one of the same replica; before that, the newer one is refused.
	TakeOver = 2 * time.Second
	// reportRate and ReportBurst bound the reports of one stream per second.
	reportRate  = 100
	ReportBurst = 200
)

// Handler handles the reports. Its methods may be called from any goroutine.
type Handler interface {
	// HandleReport returns the reply to a report. An error, which is a gRPC status,
	// ends the stream.
	HandleReport(ctx context.Context, r loadreport.Report) (loadreport.Reply, error)
	// HandleClosed is called when the stream that reports for a replica has ended.
	HandleClosed(replica policies.ReplicaID)
	// Done is closed when the control plane stops.
	Done() <-chan struct{}
}

// Service implements api.FleetServer.
type Service struct {
	api.UnimplementedFleetServer
	handler Handler
	log     *slog.Logger

	accepted, refused atomic.Uint64

	mu          sync.Mutex
	streams     map[policies.ReplicaID]*session
	lastRefusal string // that was logged
}

var _ api.FleetServer = (*Service)(nil)

// New returns the service. It starts nothing.
func New(handler Handler, log *slog.Logger) *Service {
	return &Service{handler: handler, log: log, streams: make(map[policies.ReplicaID]*session)}
}

// Counts returns how many reports were accepted, and how many streams were ended
// because a report was refused.
func (s *Service) Counts() (accepted, refused uint64) {
	return s.accepted.Load(), s.refused.Load()
}

// session is one report stream that reports for a replica.
type session struct {
	cancel context.CancelCauseFunc

	mu         sync.Mutex
	lastReport time.Time
}

var errReplaced = errors.New("a newer stream reports for this replica")

// Report serves one migrator's stream.
func (s *Service) Report(stream api.Fleet_ReportServer) error {
	err := s.serve(stream)
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.ResourceExhausted:
		s.refused.Add(1)
		s.logRefusal(err)
	}
	return err
}

// logRefusal logs a refusal unless the last one was the same: a front end with a
// wrong configuration retries forever.
func (s *Service) logRefusal(err error) {
	s.mu.Lock()
	repeated := s.lastRefusal == err.Error()
	s.lastRefusal = err.Error()
	s.mu.Unlock()
	if !repeated {
		s.log.Warn("load report refused", "error", err)
	}
}

func (s *Service) serve(stream api.Fleet_ReportServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	r := &receiver{stream: stream, out: make(chan received)}
	go r.run(ctx)

	var own *session
	var first loadreport.Report
	defer func() {
		if own != nil {
			s.release(first.Replica, own)
		}
	}()
	budget := bucket{tokens: ReportBurst, at: time.Now()}
	for {
		m, err := r.next(ctx, s.handler.Done())
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		report, err := loadreport.Decode(m)
		if err != nil {
			return status.Error(codes.InvalidArgument, "load report: "+err.Error())
		}
		if own == nil {
			if own, err = s.claim(report.Replica, cancel); err != nil {
				return err
			}
			first = report
		}
		if report.Replica != first.Replica || report.Model != first.Model {
			return status.Errorf(codes.InvalidArgument, "load report: the stream of %q cannot report for %q", first.Replica, report.Replica)
		}
		if !budget.spend(time.Now()) {
			return status.Errorf(codes.ResourceExhausted, "load report: more than %d reports a second", reportRate)
		}
		own.touch()
		reply, err := s.handler.HandleReport(ctx, report)
		if err != nil {
			return err
		}
		s.accepted.Add(1)
		if err := stream.Send(reply.Encode(report.Sequence)); err != nil {
			return err
		}
	}
}

// claim makes a stream the one that reports for a replica.
func (s *Service) claim(id policies.ReplicaID, cancel context.CancelCauseFunc) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.streams[id]; old != nil {
		if time.Since(old.touched()) < TakeOver {
			return nil, status.Errorf(codes.AlreadyExists, "another stream reports for replica %q: give every front end an id of its own", id)
		}
		old.cancel(errReplaced)
	}
	own := &session{cancel: cancel, lastReport: time.Now()}
	s.streams[id] = own
	return own, nil
}

// release ends a session. The handler is notified unless a newer stream has taken
// over.
func (s *Service) release(id policies.ReplicaID, own *session) {
	s.mu.Lock()
	current := s.streams[id] == own
	if current {
		delete(s.streams, id)
	}
	s.mu.Unlock()
	if current {
		s.handler.HandleClosed(id)
	}
}

func (s *session) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastReport = time.Now()
}

func (s *session) touched() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastReport
}

// receiver reads a stream in a goroutine of its own, because Recv has no deadline.
// The goroutine ends when the handler of the stream has returned.
type receiver struct {
	stream api.Fleet_ReportServer
	out    chan received
}

type received struct {
	m   *api.LoadReport
	err error
}

func (r *receiver) run(ctx context.Context) {
	for {
		m, err := r.stream.Recv()
		select {
		case r.out <- received{m, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// ErrStopped is the error of calls to a control plane that stops.
var ErrStopped = status.Error(codes.Unavailable, "the control plane stops")

// next waits for a message, the end of the session or that of the control plane.
func (r *receiver) next(ctx context.Context, done <-chan struct{}) (*api.LoadReport, error) {
	idle := time.NewTimer(idleTimeout)
	defer idle.Stop()
	select {
	case got := <-r.out:
		return got.m, got.err
	case <-idle.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no load report for %v", idleTimeout)
	case <-done:
		return nil, ErrStopped
	case <-ctx.Done():
		if err := context.Cause(ctx); errors.Is(err, errReplaced) {
			return nil, status.Error(codes.Aborted, err.Error())
		}
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// bucket is a token bucket over reports.
type bucket struct {
	tokens float64
	at     time.Time
}

func (b *bucket) spend(now time.Time) bool {
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*reportRate, ReportBurst)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
