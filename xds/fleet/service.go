package fleet

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Bounds of a report stream.
const (
	// reportIdle ends a stream on which no report comes: the front connects
	// anew, and a dead one does not hold its name.
	reportIdle = 30 * time.Second
	// takeOver is how long after its last report a stream may be replaced by a
	// newer one of the same replica; before, the newer one is the impostor.
	takeOver = 2 * time.Second
	// reportRate and reportBurst bound the reports of one stream per second.
	reportRate  = 100
	reportBurst = 200
)

// service is the server side of Fleet.Report. It owns the streams and decides
// who may speak for a replica; everything else is the loop's.
type service struct {
	api.UnimplementedFleetServer
	fleet *Fleet

	taken, refused atomic.Uint64

	mu      sync.Mutex
	streams map[policies.ReplicaID]*session
	noted   string // the last refusal that was logged
}

// session is one report stream that speaks for a replica.
type session struct {
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	last time.Time // of the last report
}

var errReplaced = errors.New("a newer stream reports for this replica")

// Report takes in one front's reports for as long as the stream lives.
func (s *service) Report(stream api.Fleet_ReportServer) error {
	err := s.converse(stream)
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.ResourceExhausted:
		s.refused.Add(1)
		s.note(err)
	}
	return err
}

// note logs a refusal, but not the same one again and again: a front that is
// configured wrongly tries for ever.
func (s *service) note(err error) {
	s.mu.Lock()
	again := s.noted == err.Error()
	s.noted = err.Error()
	s.mu.Unlock()
	if !again {
		s.fleet.log.Warn("load report refused", "error", err)
	}
}

func (s *service) converse(stream api.Fleet_ReportServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	r := &receiver{stream: stream, out: make(chan received)}
	go r.run(ctx)

	var own *session
	var first Report
	defer func() {
		if own != nil {
			s.release(first.Replica, own)
		}
	}()
	budget := bucket{tokens: reportBurst, at: time.Now()}
	for {
		m, err := r.next(ctx, s.fleet.done)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		report, err := Decode(m)
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
		if !budget.take(time.Now()) {
			return status.Errorf(codes.ResourceExhausted, "load report: more than %d reports a second", reportRate)
		}
		own.touch()
		reply, err := s.fleet.report(ctx, report)
		if err != nil {
			return err
		}
		s.taken.Add(1)
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

// claim makes a stream the one that speaks for a replica.
func (s *service) claim(id policies.ReplicaID, cancel context.CancelCauseFunc) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.streams[id]; old != nil {
		if time.Since(old.touched()) < takeOver {
			return nil, status.Errorf(codes.AlreadyExists, "another stream reports for replica %q: give every front an id of its own", id)
		}
		old.cancel(errReplaced)
	}
	own := &session{cancel: cancel, last: time.Now()}
	s.streams[id] = own
	return own, nil
}

// release ends a session; when it still speaks for the replica, the loop is
// told that nobody does now.
func (s *service) release(id policies.ReplicaID, own *session) {
	s.mu.Lock()
	mine := s.streams[id] == own
	if mine {
		delete(s.streams, id)
	}
	s.mu.Unlock()
	if mine {
		s.fleet.send(context.Background(), message{event: Closed{id}})
	}
}

func (s *session) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}

func (s *session) touched() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// receiver reads a stream in a goroutine of its own, because Recv knows no
// deadline. The goroutine ends when the handler has returned.
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

// next waits for a message, the end of the session or that of the fleet.
func (r *receiver) next(ctx context.Context, done <-chan struct{}) (*api.LoadReport, error) {
	idle := time.NewTimer(reportIdle)
	defer idle.Stop()
	select {
	case got := <-r.out:
		return got.m, got.err
	case <-idle.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no load report for %v", reportIdle)
	case <-done:
		return nil, status.Error(codes.Unavailable, "the control plane stops")
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

func (b *bucket) take(now time.Time) bool {
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*reportRate, reportBurst)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
