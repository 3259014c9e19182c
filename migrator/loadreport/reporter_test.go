package loadreport

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// arrived is a report with its arrival time since the start of the test.
type arrived struct {
	*api.LoadReport
	at time.Duration
}

// controlPlane is a control plane that answers reports unless muted.
type controlPlane struct {
	api.UnimplementedFleetServer
	got    chan arrived
	refuse atomic.Pointer[error] // error for new streams, and for reports on old ones
	mute   atomic.Bool
	opened atomic.Int64
	reply  atomic.Pointer[api.LoadReply] // fields besides sequence, epoch and mean; nil: none
	start  time.Time
}

func (p *controlPlane) Report(s api.Fleet_ReportServer) error {
	p.opened.Add(1)
	for {
		if err := p.refuse.Load(); err != nil {
			return *err
		}
		r, err := s.Recv()
		if err != nil {
			return err
		}
		p.got <- arrived{r, time.Since(p.start)}
		if p.mute.Load() {
			continue
		}
		reply := &api.LoadReply{Sequence: r.Sequence, Epoch: 7, StageMeanHeld: 12.5}
		if more := p.reply.Load(); more != nil {
			reply.Drain, reply.Refine, reply.PrefillRanges = more.Drain, more.Refine, more.PrefillRanges
		}
		if err := s.Send(reply); err != nil {
			return err
		}
	}
}

// harness is a reporter, its control plane and the connection between them, in a bubble of virtual
// time.
type harness struct {
	*controlPlane
	*Reporter
	changed chan struct{}
	status  atomic.Pointer[frontend.Status]
	extra   atomic.Pointer[Extra]
	replies chan Reply
	log     testkit.Log
	stop    context.CancelFunc
	done    chan error
}

func runHarness(t *testing.T, test func(t *testing.T, w *harness)) {
	synctest.Test(t, func(t *testing.T) {
		w := &harness{controlPlane: &controlPlane{got: make(chan arrived, 1000), start: time.Now()}, changed: make(chan struct{}, 1), done: make(chan error, 1), replies: make(chan Reply, 1000)}
		w.extra.Store(new(Extra))
		w.status.Store(&frontend.Status{EngineReady: true})
		server := grpc.NewServer()
		api.RegisterFleetServer(server, w.controlPlane)
		conn, _ := memgrpc.Serve(t, server)
		u, err := New(Config{Conn: conn, Replica: "r0", Model: "m", Status: func() frontend.Status { return *w.status.Load() }, Changed: w.changed,
			Extra: func() Extra { return *w.extra.Load() }, OnReply: func(r Reply) { w.replies <- r }, Logger: w.log.Logger()})
		testkit.NoError(t, err)
		w.Reporter = u
		ctx, cancel := context.WithCancel(t.Context())
		w.stop = cancel
		go func() { w.done <- u.Run(ctx) }()
		test(t, w)
		cancel()
		if err := <-w.done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestReports(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		edges := []policies.Tokens{0, 16, 32}
		flow := policies.NewFlow(edges)
		flow.Tokens[1], flow.Seen = 3.5, 9
		w.status.Store(&frontend.Status{
			Load: policies.Load{Running: 1, Waiting: 2, Held: 3, Promised: 4, Iteration: 0.5}, Flow: flow,
			Snapshot: []policies.Batch{{N: 1, SumI: 2, SumI2: 3, SumL: 4}, {}, {}}, EngineReady: true, BytesPerToken: 4.5, EstimateError: 0.25,
			Prefixes: frontend.PrefixStatus{PrefixStatus: loadtracker.PrefixStatus{Source: loadtracker.EngineEvents, Blocks: 12}},
		})
		<-w.got // may be the previous report
		for i := range uint64(3) {
			r := <-w.got
			if want := time.Duration(i+1) * defaultInterval; r.at != want || r.Sequence != i+2 {
				t.Errorf("report %d came at %v, want %v", r.Sequence, r.at, want)
			}
			if r.Replica != "r0" || r.Model != "m" || r.Load.Running != 1 || r.Load.Waiting != 2 || r.Load.HeldTokens != 3 || r.Load.PromisedTokens != 4 || r.Load.IterationSeconds != 0.5 ||
				len(r.Flow.Edges) != 3 || r.Flow.Edges[2] != 32 || r.Flow.Tokens[1] != 3.5 || r.Flow.Seen != 9 ||
				len(r.Snapshot) != 3 || r.Snapshot[0].SumLength != 4 || !r.EngineReady || r.Draining || r.BytesPerToken != 4.5 || r.EstimateError != 0.25 ||
				r.KnownPrefixes.Source != "events" || r.KnownPrefixes.Blocks != 12 {
				t.Errorf("report: %v", r.LoadReport)
			}
		}
	})
}

// TestReplies checks that a reply is passed on at once, and that an unavailable control plane
// revokes none.
func TestReplies(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		if r := <-w.replies; r.Drain || r.Refine != nil || r.Epoch != 7 || r.StageMeanHeld != 12.5 {
			t.Errorf("first: %+v", r)
		}
		w.reply.Store(&api.LoadReply{Drain: true, Refine: &api.Refine{Epoch: 7, Boundary: 512, High: 1024, Peers: 2, Successors: 1}})
		if r := <-w.replies; !r.Drain || r.Refine.GetBoundary() != 512 || time.Since(r.ReceivedAt) != 0 {
			t.Errorf("a drain: %+v", r)
		}
		for _, c := range []struct {
			in   []*api.PrefillRange
			want []policies.PrefillRange
		}{
			{[]*api.PrefillRange{{Replica: "p", High: 9}, {Replica: "q", Low: 9}}, []policies.PrefillRange{{Replica: "p", High: 9}, {Replica: "q", Low: 9, High: policies.Unbounded}}},
			{nil, nil},
			{[]*api.PrefillRange{{Replica: "p", Low: -1, High: 9}}, nil},
			{[]*api.PrefillRange{{Replica: "p", High: 9}, {Replica: "q", Low: 9, High: 9}}, nil},
			{[]*api.PrefillRange{{Replica: "p", High: -1}}, nil},
			{slices.Repeat([]*api.PrefillRange{{Replica: "p"}}, maxPrefillRanges+1), nil},
		} {
			w.reply.Store(&api.LoadReply{Drain: true, PrefillRanges: c.in})
			<-w.replies // may be the previous one
			if r := <-w.replies; !slices.Equal(r.PrefillRanges, c.want) {
				t.Errorf("prefill ranges %v: %v, want %v", c.in, r.PrefillRanges, c.want)
			}
		}
		away := error(status.Error(codes.Unavailable, "away"))
		w.refuse.Store(&away)
		time.Sleep(time.Minute)
		for len(w.replies) > 0 {
			if r := <-w.replies; !r.Drain || time.Since(r.ReceivedAt) < time.Minute/2 {
				t.Errorf("away: %+v", r)
			}
		}
	})
}

// TestExtra reports the state that the front end does not provide.
func TestExtra(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		<-w.got
		w.extra.Store(&Extra{Proposal: &api.Proposal{Epoch: 3, Low: 1, Boundary: 9}, Residents: 5, Pinned: 2, PinnedSeconds: 1.5, Streams: -1, Routes: make([]*api.Route, 40)})
		r := <-w.got
		if r.Proposal.GetBoundary() != 9 || r.Residents != 5 || r.Pinned != 2 || r.PinnedSeconds != 1.5 || r.Streams != 0 || len(r.Migrations) != 0 || len(r.Routes) != maxRoutes {
			t.Errorf("report: %v", r.LoadReport)
		}
	})
}

// TestSiteIsReportedOnce reports the location until it is acknowledged, again when it changes, and
// again on the next stream.
func TestSiteIsReportedOnce(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		<-w.got
		next := func(want *api.Topology) {
			t.Helper()
			if r := <-w.got; r.Topology.GetHost() != want.GetHost() {
				t.Errorf("report %d contains %v, want %v", r.Sequence, r.Topology, want)
			}
		}
		a, b := &api.Topology{Host: "a"}, &api.Topology{Host: "b"}
		w.mute.Store(true)
		w.extra.Store(&Extra{Topology: a})
		next(a)
		next(a) // no reply has arrived
		synctest.Wait()
		w.mute.Store(false)
		next(a) // the answer arrives after this report was sent
		next(nil)
		next(nil)
		w.extra.Store(&Extra{Topology: b})
		next(b)
		next(nil)
		away := error(status.Error(codes.Unavailable, "away"))
		w.refuse.Store(&away)
		time.Sleep(5 * time.Second)
		w.refuse.Store(nil)
		for len(w.got) > 0 {
			<-w.got
		}
		for range 20 {
			if r := <-w.got; r.Sequence == 1 && r.Topology.GetHost() == "b" {
				return
			}
		}
		t.Error("the location is missing in a new stream")
	})
}

// TestMigrationsUntilAcknowledged reports each state of a migration until it is acknowledged, also
// on the next stream, and then no longer.
func TestMigrationsUntilAcknowledged(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		<-w.got
		report := func(moves ...*api.Migration) { w.extra.Store(&Extra{Migrations: moves}) }
		want := func(want string) {
			t.Helper()
			var got []string
			for _, m := range (<-w.got).Migrations {
				got = append(got, m.Id+" "+m.State)
			}
			if s := strings.Join(got, ", "); s != want {
				t.Errorf("reported %q, want %q", s, want)
			}
		}
		report(&api.Migration{Id: "r0/1", State: "pull"}, &api.Migration{Id: "r0/2", State: "done"})
		want("r0/1 pull, r0/2 done")
		report(&api.Migration{Id: "r0/1", State: "pull", Seconds: 2}, &api.Migration{Id: "r0/2", State: "done"})
		want("")
		report(&api.Migration{Id: "r0/1", State: "pull", Rounds: 1}, &api.Migration{Id: "r0/2", State: "done"})
		want("r0/1 pull")
		w.mute.Store(true) // from here on, reports are not answered
		report(&api.Migration{Id: "r0/1", State: "done", Rounds: 1}, &api.Migration{Id: "r0/2", State: "done"})
		want("r0/1 done")
		want("r0/1 done")
		time.Sleep(replyTimeout + time.Second) // a new stream
		w.mute.Store(false)
		for {
			r := <-w.got
			if len(r.Migrations) == 0 {
				break // finally answered
			}
			if len(r.Migrations) != 1 || r.Migrations[0].Id != "r0/1" || r.Migrations[0].State != "done" {
				t.Fatalf("reported %v", r.Migrations)
			}
		}
		var many []*api.Migration
		for i := range 100 {
			many = append(many, &api.Migration{Id: strconv.Itoa(i), State: "done"})
		}
		report(many...)
		if n, m := len((<-w.got).Migrations), len((<-w.got).Migrations); n != maxMigrations || m != 100-maxMigrations {
			t.Errorf("%d migrations, then %d", n, m)
		}
		want("")
		report()
		want("")
		if w.streams[0].migrations.mu.Lock(); len(w.streams[0].migrations.known) != 0 {
			t.Errorf("%d ended migrations are remembered", len(w.streams[0].migrations.known))
		}
		w.streams[0].migrations.mu.Unlock()
	})
}

func TestReportsChangesAtOnce(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		<-w.got
		time.Sleep(10 * time.Millisecond)
		w.status.Store(&frontend.Status{Draining: true})
		w.changed <- struct{}{}
		if r := <-w.got; !r.Draining || r.at != 10*time.Millisecond {
			t.Errorf("after %v: %v", r.at, r.LoadReport)
		}
		w.status.Store(&frontend.Status{EngineHung: true})
		w.changed <- struct{}{}
		if r := <-w.got; !r.EngineHung || r.EngineReady {
			t.Errorf("a hung engine is reported as %v", r.LoadReport)
		}
	})
}

// TestReconnects ends the stream in each way in which a control plane can end it.
func TestReconnects(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		<-w.got
		away := error(status.Error(codes.Unavailable, "away"))
		w.refuse.Store(&away)
		time.Sleep(time.Minute)
		// A minute of delays between 0.5 and 1 s, after a few short ones.
		if n := w.opened.Load(); n < 60 || n > 130 {
			t.Errorf("%d attempts in a minute", n)
		}
		for len(w.got) > 0 {
			<-w.got
		}
		w.refuse.Store(nil)
		back := time.Since(w.start)
		if r := <-w.got; r.Sequence != 1 || r.at-back > maxRetryDelay {
			t.Errorf("report %d came %v after the control plane", r.Sequence, r.at-back)
		}
		time.Sleep(time.Second)
		if n := w.log.Count("reporting to control plane again"); n != 1 {
			t.Errorf("the end of an outage is logged %d times:\n%s", n, &w.log)
		}
	})
}

func TestSilentControlPlane(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		w.mute.Store(true)
		time.Sleep(replyTimeout + time.Second)
		if n := w.opened.Load(); n < 2 {
			t.Errorf("%d streams in %v without an answer", n, replyTimeout)
		}
	})
}

func TestConfig(t *testing.T) {
	good := Config{Conn: &grpc.ClientConn{}, Replica: "r", Model: "m", Status: func() frontend.Status { return frontend.Status{} }}
	testkit.Must(New(good))
	for field, change := range map[string]func(*Config){
		"Replica": func(c *Config) { c.Replica = "" }, "Model": func(c *Config) { c.Model = "" },
		"Conn": func(c *Config) { c.Conn = nil }, "Status": func(c *Config) { c.Status = nil }, "Interval": func(c *Config) { c.Interval = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("without %s: %v", field, err)
		}
	}
}
