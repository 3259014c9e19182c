package reports

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// slowHandler takes its time for the first report, and for the end of a stream.
type slowHandler struct {
	release chan struct{}
	closing chan struct{} // nil: the end takes no time

	mu     sync.Mutex
	events []string
}

func (h *slowHandler) note(event string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, event)
}

func (h *slowHandler) HandleReport(_ context.Context, r loadreport.Report) (loadreport.Reply, error) {
	if r.Sequence == 1 {
		<-h.release
	}
	h.note(map[uint64]string{1: "old", 2: "new", 3: "late"}[r.Sequence])
	return loadreport.Reply{}, nil
}

func (h *slowHandler) HandleClosed(policies.ReplicaID) {
	if h.closing != nil {
		<-h.closing
	}
	h.note("closed")
}

func (h *slowHandler) Done() <-chan struct{} { return nil }

// scriptedStream is a stream whose messages come from a channel.
type scriptedStream struct {
	grpc.ServerStream
	ctx      context.Context
	messages chan *api.LoadReport
}

func (s *scriptedStream) Context() context.Context  { return s.ctx }
func (s *scriptedStream) Send(*api.LoadReply) error { return nil }

func (s *scriptedStream) Recv() (*api.LoadReport, error) {
	select {
	case m := <-s.messages:
		return m, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// TestTakeOverIsInOrder checks that no report of a stream is handled after one of the stream that has replaced it,
// however late the loop is.
func TestTakeOverIsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slowHandler{release: make(chan struct{})}
		s := New(h, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		open := func(sequences ...uint64) (ended chan error) {
			stream := &scriptedStream{ctx: ctx, messages: make(chan *api.LoadReport, len(sequences))}
			for _, n := range sequences {
				stream.messages <- &api.LoadReport{Replica: "r0", Model: "m", Sequence: n}
			}
			ended = make(chan error, 1)
			go func() { ended <- s.Report(stream) }()
			return ended
		}
		old := open(1, 3)
		time.Sleep(TakeOver)
		replacing := open(2)
		synctest.Wait()
		close(h.release)
		if err := <-old; err == nil {
			t.Error("the stream that was replaced ends without an error")
		}
		synctest.Wait()
		cancel()
		<-replacing
		if want := []string{"old", "new", "closed"}; !slices.Equal(h.events, want) {
			t.Errorf("handled %v, want %v", h.events, want)
		}
	})
}

// TestReplacedStreamReportsNoMore checks that a report which a stream had received when another one replaced it is not
// handled.
func TestReplacedStreamReportsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slowHandler{}
		s := New(h, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancelCause(t.Context())
		old := testkit.Must(s.claim("r0", cancel))
		time.Sleep(TakeOver)
		replacing := testkit.Must(s.claim("r0", func(error) {}))
		testkit.Must(s.handle(t.Context(), replacing, loadreport.Report{Replica: "r0", Sequence: 2}))
		if _, err := s.handle(ctx, old, loadreport.Report{Replica: "r0", Sequence: 3}); !errors.Is(err, errReplaced) {
			t.Errorf("the replaced stream gets %v, want %v", err, errReplaced)
		}
		if want := []string{"new"}; !slices.Equal(h.events, want) || context.Cause(ctx) != errReplaced {
			t.Errorf("handled %v, want %v; the replaced stream ends with %v", h.events, want, context.Cause(ctx))
		}
	})
}

// TestEndIsHandledBeforeNextStream checks that a replica which reconnects while the end of its stream is handled is
// taken on at once, and that its first report is handled after that end: the replica would else count as gone.
func TestEndIsHandledBeforeNextStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slowHandler{closing: make(chan struct{})}
		s := New(h, slog.New(slog.DiscardHandler))
		old := testkit.Must(s.claim("r0", func(error) {}))
		go s.release("r0", old)
		synctest.Wait()
		go func() {
			next := testkit.Must(s.claim("r0", func(error) {}))
			testkit.Must(s.handle(t.Context(), next, loadreport.Report{Replica: "r0", Sequence: 2}))
		}()
		synctest.Wait()
		close(h.closing)
		synctest.Wait()
		if want := []string{"closed", "new"}; !slices.Equal(h.events, want) {
			t.Errorf("handled %v, want %v", h.events, want)
		}
	})
}
