package reports

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

// Service implements api.FleetServer: the gRPC stream Fleet.Report by which migrators send their load reports. It owns
// the streams, decides which stream reports for a replica, and passes every decoded report to a Handler.
//
// Invariants: at most one stream reports for a replica at a time; a stream reports for one replica only; a stream that
// sends too many, no, or invalid reports is ended.
type Service struct {
	api.UnimplementedFleetServer
	handler Handler
	counter Counter

	mu      sync.Mutex
	streams map[policies.ReplicaID]*session
}

var _ api.FleetServer = (*Service)(nil)

// New returns the service. It starts nothing.
func New(handler Handler, log *slog.Logger) *Service {
	refusals := []codes.Code{codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.ResourceExhausted}
	return &Service{
		handler: handler, streams: make(map[policies.ReplicaID]*session),
		counter: Counter{Log: log, Message: "load report refused", Codes: refusals},
	}
}

// Counts returns how many reports were accepted, and how many streams were ended
// because a report was refused.
func (s *Service) Counts() (accepted, refused uint64) { return s.counter.Counts() }

// session is one report stream that reports for a replica.
type session struct {
	cancel     context.CancelCauseFunc
	lastReport atomic.Pointer[time.Time]

	handling chan struct{} // capacity 1: full while a report of the stream, or its end, is handled
	replaced bool          // by a newer stream; guarded by handling
	ended    bool          // guarded by Service.mu
}

var errReplaced = status.Error(codes.Aborted, "a newer stream reports for this replica")

// Report serves one migrator's stream.
func (s *Service) Report(stream api.Fleet_ReportServer) error { return s.counter.End(s.serve(stream)) }

func (s *Service) serve(stream api.Fleet_ReportServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	r := Receive(ctx, stream.Recv)
	var own *session
	var first loadreport.Report
	defer func() {
		if own != nil {
			s.release(first.Replica, own)
		}
	}()
	budget := NewBucket(time.Now(), reportRate, ReportBurst)
	for {
		m, err := r.Next(ctx, s.handler.Done())
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
		if !budget.Spend(time.Now()) {
			return status.Errorf(codes.ResourceExhausted, "load report: more than %d reports a second", reportRate)
		}
		reply, err := s.handle(ctx, own, report)
		if err != nil {
			return err
		}
		s.counter.Accept()
		if err := stream.Send(reply.Encode(report.Sequence)); err != nil {
			return err
		}
	}
}

// handle passes a report to the handler, unless a newer stream has replaced this one.
func (s *Service) handle(ctx context.Context, own *session, report loadreport.Report) (loadreport.Reply, error) {
	own.touch()
	own.handling <- struct{}{}
	defer func() { <-own.handling }()
	if own.replaced {
		return loadreport.Reply{}, errReplaced
	}
	return s.handler.HandleReport(ctx, report)
}

// claim lets a stream report for a replica, in place of the stream that did. It waits until that stream's last report
// or its end has been handled: handled after a report of the new stream, the lower counters would look like a restart of
// the front end, and the end like that of the new stream.
func (s *Service) claim(id policies.ReplicaID, cancel context.CancelCauseFunc) (*session, error) {
	own := &session{cancel: cancel, handling: make(chan struct{}, 1)}
	own.touch()
	own.handling <- struct{}{}
	defer func() { <-own.handling }()
	s.mu.Lock()
	old := s.streams[id]
	if old != nil && !old.ended && time.Since(*old.lastReport.Load()) < TakeOver {
		s.mu.Unlock()
		return nil, status.Errorf(codes.AlreadyExists, "another stream reports for replica %q: give every front end an id of its own", id)
	}
	s.streams[id] = own
	s.mu.Unlock()
	if old != nil {
		old.cancel(errReplaced)
		old.handling <- struct{}{}
		old.replaced = true
		<-old.handling
	}
	return own, nil
}

// release ends a session. The handler is notified unless a newer stream has taken
// over.
func (s *Service) release(id policies.ReplicaID, own *session) {
	own.handling <- struct{}{}
	defer func() { <-own.handling }()
	s.mu.Lock()
	own.ended = true
	current := s.streams[id] == own
	s.mu.Unlock()
	if !current {
		return
	}
	s.handler.HandleClosed(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[id] == own {
		delete(s.streams, id)
	}
}

func (s *session) touch() {
	now := time.Now()
	s.lastReport.Store(&now)
}
