package reports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests; none of them waits for a fixed time.
const patience = time.Minute

// served is a running Service with a client of it.
type served struct {
	*LRSService
	book   *Book
	client loadstatsv3.LoadReportingServiceClient
	end    func() // ends Run
}

func serve(t *testing.T, admit func(context.Context, string) error) *served {
	t.Helper()
	book := NewBook(10*time.Second, nil)
	s := testkit.Must(NewLRS(Config{Book: book, Admit: admit}))
	server := grpc.NewServer()
	loadstatsv3.RegisterLoadReportingServiceServer(server, s)
	conn, _ := memgrpc.Serve(t, server)
	return &served{s, book, loadstatsv3.NewLoadReportingServiceClient(conn), testkit.Run(t, s.Run)}
}

// report opens a stream and reports stages; its first message makes the service reply.
func (s *served) report(t *testing.T, id string, clusters ...*endpointv3.ClusterStats) loadstatsv3.LoadReportingService_StreamLoadStatsClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := s.client.StreamLoadStats(ctx)
	testkit.NoError(t, err)
	testkit.NoError(t, stream.Send(request(id)))
	answer, err := stream.Recv()
	testkit.NoError(t, err)
	if !answer.GetSendAllClusters() || !answer.GetReportEndpointGranularity() || answer.GetLoadReportingInterval().AsDuration() != 10*time.Second {
		t.Errorf("%v", answer)
	}
	testkit.NoError(t, stream.Send(request(id, clusters...)))
	return stream
}

// waitForMessages waits until the service has accepted this number of messages.
func (s *served) waitForMessages(t *testing.T, messages uint64) {
	t.Helper()
	testkit.WaitFor(t, fmt.Sprint(messages, " messages"), func() bool { n, _ := s.Reports(); return n >= messages })
}

func TestService(t *testing.T) {
	s := serve(t, nil)
	a := s.report(t, "e1", stats(stage0, on(1000, 3)), stats("xds", on(7, 1)))
	s.report(t, "e2", stats(stage0, on(1000, 4)))
	s.waitForMessages(t, 2)
	if n := s.book.Loads(time.Now())[here(1000, 0).address].Requests; n != 7 {
		t.Errorf("%d requests, want 7", n)
	}
	testkit.NoError(t, a.CloseSend())
	if _, err := a.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("an orderly end: %v", err)
	}
	b := s.report(t, "e3")
	s.end()
	if _, err := b.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the service's end: %v", err)
	}
}

func TestServiceRefuses(t *testing.T) {
	s := serve(t, func(_ context.Context, node string) error {
		if node == "stranger" {
			return status.Error(codes.PermissionDenied, "no")
		}
		return nil
	})
	refusal := func(messages ...*loadstatsv3.LoadStatsRequest) codes.Code {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		stream, err := s.client.StreamLoadStats(ctx)
		testkit.NoError(t, err)
		for _, m := range messages {
			if stream.Send(m) != nil {
				break
			}
		}
		for {
			if _, err := stream.Recv(); err != nil {
				return status.Code(err)
			}
		}
	}
	if c := refusal(&loadstatsv3.LoadStatsRequest{}); c != codes.InvalidArgument {
		t.Errorf("no node: %v", c)
	}
	if c := refusal(request("e1"), request("e1"), request("e2")); c != codes.InvalidArgument {
		t.Errorf("two nodes: %v", c)
	}
	if c := refusal(request("stranger")); c != codes.PermissionDenied {
		t.Errorf("a stranger: %v", c)
	}
	flood := make([]*loadstatsv3.LoadStatsRequest, 20*reportBurst)
	for i := range flood {
		flood[i] = &loadstatsv3.LoadStatsRequest{}
	}
	if c := refusal(append([]*loadstatsv3.LoadStatsRequest{request("e1")}, flood...)...); c != codes.ResourceExhausted {
		t.Errorf("a flood: %v", c)
	}
	if _, refused := s.Reports(); refused != 4 {
		t.Errorf("%d refused, want 4", refused)
	}
}

// TestNodeIsNotKept checks that the memory of a stream is far smaller than the node
// description that each of its messages repeats.
func TestNodeIsNotKept(t *testing.T) {
	heap := func() int64 {
		for range 3 {
			runtime.GC() // pooled buffers survive one collection
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	s := serve(t, nil)
	s.report(t, "warm", stats(stage0, on(1000, 3)))
	const streams = 100
	before := heap()
	for i := range streams {
		s.report(t, fmt.Sprintf("e%d", i), stats(stage0, on(1000, 3)))
	}
	s.waitForMessages(t, streams+1)
	each := (heap() - before) / streams
	t.Logf("%d bytes per stream, the client's end included", each)
	if each > 48<<10 {
		t.Errorf("%d bytes per stream", each)
	}
	runtime.KeepAlive(s)
}
