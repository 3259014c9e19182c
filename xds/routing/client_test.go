package routing

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// adsServer connects every stream to the test: requests delivers the client's messages,
// and messages put into responses are sent to the client; nil ends the stream.
type adsServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	requests  chan *discoveryv3.DeltaDiscoveryRequest
	responses chan *discoveryv3.DeltaDiscoveryResponse
}

func (s *adsServer) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case s.requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case r := <-s.responses:
			if r == nil {
				return status.Error(codes.Unavailable, "the test ends the stream")
			}
			if err := stream.Send(r); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

type updates chan *Snapshot

func (u updates) Update(s *Snapshot) { u <- s }

// start runs a client of an adsServer until the test ends.
func start(t *testing.T) (*adsServer, updates, *Client) {
	t.Helper()
	s, conn := serve(t)
	u, c := follow(t, Config{Conn: conn})
	return s, u, c
}

// serve starts an adsServer and connects to it.
func serve(t *testing.T) (*adsServer, *grpc.ClientConn) {
	t.Helper()
	s := &adsServer{requests: make(chan *discoveryv3.DeltaDiscoveryRequest),
		responses: make(chan *discoveryv3.DeltaDiscoveryResponse)}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	conn, _ := memgrpc.Serve(t, g)
	return s, conn
}

// follow runs a client until the test ends.
func follow(t *testing.T, cfg Config) (updates, *Client) {
	t.Helper()
	u := make(updates, 100)
	cfg.NodeID, cfg.Watcher, cfg.BackoffMin = "n1", u, time.Millisecond
	c := testkit.Must(New(cfg))
	testkit.Run(t, c.Run)
	return u, c
}

func (s *adsServer) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case r := <-s.requests:
		if got := render(r); got != want {
			t.Fatalf("the client says %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("the client says nothing, want %q", want)
	}
}

func TestStreamReconnects(t *testing.T) {
	var log testkit.Log
	s, conn := serve(t)
	u, c := follow(t, Config{Conn: conn, Logger: log.Logger()})
	s.expect(t, "Routing node=n1 subscribe=cascade")
	if first := <-u; first.Plan() != nil || first.Slots == nil {
		t.Fatal("the first snapshot should be empty")
	}
	s.responses <- response("plan", "1", []string{"7"})
	if got := <-u; got.Routing.Epoch != 7 || got.Version != "v7" {
		t.Fatalf("plan 7 is not there: %+v", got)
	}
	s.expect(t, "Routing ACK 1")
	if !c.Connected() {
		t.Error("Connected is false on an open stream")
	}
	s.responses <- nil
	// On a new stream the client sends the node again, and the version that it has.
	s.expect(t, "Routing node=n1 subscribe=cascade have:cascade@v7")
	s.responses <- response("plan", "1", []string{"8"})
	s.expect(t, "Routing ACK 1")
	if got := <-u; got.Routing.Epoch != 8 || c.Snapshot() != got {
		t.Fatalf("plan 8 is not there: %+v", got)
	}
	// An operator who reads of an outage reads of its end, too.
	if n := log.Count("level=WARN msg=\"control plane connected\""); n != 1 {
		t.Errorf("the end of an outage is logged %d times:\n%s", n, &log)
	}
}

func TestConfigErrors(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no target": {NodeID: "n"},
		"no node":   {Target: "x"},
		"negative":  {Target: "x", NodeID: "n", BackoffMin: -1},
		"no slot":   {Target: "x", NodeID: "n", Slots: make([]string, 1)},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: New accepted it", name)
		}
	}
}

func TestBackoffBounds(t *testing.T) {
	for attempt := range 100 {
		d := backoff(DefaultBackoffMin, attempt)
		if d < DefaultBackoffMin/2 || d > DefaultBackoffMax {
			t.Fatalf("attempt %d waits %v", attempt, d)
		}
	}
}
