package uplink

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/cascadeinfer/cascade/migrator/stream"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a control plane that hands every report to the test, and ends a
// stream when told to.
type server struct {
	api.UnimplementedFleetServer
	reports chan *api.LoadReport
	cut     chan error
}

func (s *server) Report(st grpc.BidiStreamingServer[api.LoadReport, api.LoadReply]) error {
	for {
		r, err := st.Recv()
		if err != nil {
			return err
		}
		select {
		case s.reports <- r:
		case err := <-s.cut:
			return err
		case <-st.Context().Done():
			return st.Context().Err()
		}
		if err := st.Send(&api.LoadReply{Sequence: r.Sequence, Epoch: 7}); err != nil {
			return err
		}
	}
}

// state is a Source whose load counts the calls.
type state struct{ calls atomic.Int64 }

func (s *state) Status() stream.Status {
	f := policies.NewFlow([]policies.Tokens{0, 16, 64})
	f.Arrivals[1], f.Seen = 2.5, 9
	return stream.Status{
		Load: policies.Load{Running: int(s.calls.Add(1)), Held: 640, Iteration: 0.02}, Flow: f,
		Snapshot: []policies.Batch{{N: 1, SumI: 2, SumI2: 4, SumL: 3}}, EngineReady: true, BytesPerToken: 4.2,
	}
}

// start serves s over a pipe and returns a connection to it.
func start(t *testing.T, s *server) *grpc.ClientConn {
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	api.RegisterFleetServer(g, s)
	go g.Serve(l)
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); g.Stop() })
	return conn
}

func run(t *testing.T, c Config) *Uplink {
	u, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return u
}

func TestReportsTheWholeState(t *testing.T) {
	s := &server{reports: make(chan *api.LoadReport)}
	changed := make(chan struct{})
	u := run(t, Config{Replica: "r0", Model: "m", Conn: start(t, s), Source: &state{}, Interval: time.Hour, Changed: changed})
	r := <-s.reports
	if r.Replica != "r0" || r.Model != "m" || r.Sequence != 1 || r.Load.HeldTokens != 640 || r.Load.IterationSeconds != 0.02 || !r.EngineReady || r.BytesPerToken != 4.2 {
		t.Errorf("report: %v", r)
	}
	if len(r.Flow.Edges) != 3 || r.Flow.Edges[2] != 64 || r.Flow.Arrivals[1] != 2.5 || r.Flow.Seen != 9 || r.Snapshot[0].SumInput2 != 4 {
		t.Errorf("flow: %v, snapshot %v", r.Flow, r.Snapshot)
	}
	changed <- struct{}{} // no need to wait for the hour
	if r := <-s.reports; r.Sequence != 2 || r.Load.Running != 2 {
		t.Errorf("second report: %v", r)
	}
	changed <- struct{}{}
	<-s.reports // the reply to the second has been sent by now, and is read in order
	changed <- struct{}{}
	<-s.reports
	if got := u.Reply(); got == nil || got.Epoch != 7 {
		t.Errorf("reply: %v", got)
	}
}

// TestReconnects cuts the stream several times: every new one begins with
// sequence 1 and the present state.
func TestReconnects(t *testing.T) {
	s := &server{reports: make(chan *api.LoadReport), cut: make(chan error)}
	run(t, Config{Replica: "r0", Model: "m", Conn: start(t, s), Source: &state{}, Interval: time.Millisecond, BackoffMin: time.Millisecond, BackoffMax: 4 * time.Millisecond})
	var before uint32
	for range 5 {
		r := <-s.reports
		for r.Sequence != 1 {
			r = <-s.reports
		}
		if r.Load.Running <= before {
			t.Fatalf("state went back: %d after %d", r.Load.Running, before)
		}
		before = r.Load.Running
		s.cut <- errors.New("the control plane restarts")
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	good := Config{Replica: "r", Model: "m", Conn: &grpc.ClientConn{}, Source: &state{}}
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Replica = "" }, "Replica"},
		{func(c *Config) { c.Model = "" }, "Model"},
		{func(c *Config) { c.Conn = nil }, "Conn"},
		{func(c *Config) { c.Source = nil }, "Source"},
		{func(c *Config) { c.Interval = -1 }, "Interval"},
	} {
		bad := good
		c.change(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error about %s, got %v", c.want, err)
		}
	}
}
