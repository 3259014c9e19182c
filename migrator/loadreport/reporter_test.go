package loadreport

import (
	"context"
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
	"google.golang.org/protobuf/proto"

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
			reply.Drain, reply.Refine = more.Drain, more.Refine
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
	report  atomic.Pointer[api.LoadReport]
	replies chan *api.LoadReply
	log     testkit.Log
	stop    context.CancelFunc
	done    chan error
}

func runHarness(t *testing.T, test func(t *testing.T, w *harness)) {
	synctest.Test(t, func(t *testing.T) {
		w := &harness{controlPlane: &controlPlane{got: make(chan arrived, 1000), start: time.Now()}, changed: make(chan struct{}, 1), done: make(chan error, 1), replies: make(chan *api.LoadReply, 1000)}
		w.report.Store(&api.LoadReport{EngineReady: true})
		server := grpc.NewServer()
		api.RegisterFleetServer(server, w.controlPlane)
		conn, _ := memgrpc.Serve(t, server)
		u, err := New(Config{Conn: conn, Replica: "r0", Model: "m", Changed: w.changed, Logger: w.log.Logger(),
			Report: w.newReport, OnReply: func(r *api.LoadReply) { w.replies <- r }})
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

// newReport returns a report that the reporter may change; its topology is the same one each time.
func (w *harness) newReport() *api.LoadReport {
	r := w.report.Load()
	out := proto.CloneOf(r)
	out.Topology = r.Topology
	return out
}

func TestEncode(t *testing.T) {
	flow := policies.NewFlow([]policies.Tokens{0, 16, 32})
	flow.Tokens[1], flow.Seen = 3.5, 9
	r := Encode("m", frontend.Status{
		Load: policies.Load{Running: 1, Waiting: 2, Held: 3, Promised: 4, Iteration: 0.5}, Flow: flow,
		Snapshot: []policies.Batch{{N: 1, SumI: 2, SumI2: 3, SumL: 4}, {}, {}}, EngineReady: true, BytesPerToken: 4.5, EstimateError: 0.25,
		Prefixes: frontend.PrefixStatus{PrefixStatus: loadtracker.PrefixStatus{Source: loadtracker.EngineEvents, Blocks: 12}},
	})
	if r.Load.Running != 1 || r.Load.Waiting != 2 || r.Load.HeldTokens != 3 || r.Load.PromisedTokens != 4 || r.Load.IterationSeconds != 0.5 ||
		len(r.Flow.Edges) != 3 || r.Flow.Edges[2] != 32 || r.Flow.Tokens[1] != 3.5 || r.Flow.Seen != 9 ||
		len(r.Snapshot) != 3 || r.Snapshot[0].SumLength != 4 || !r.EngineReady || r.Draining || r.BytesPerToken != 4.5 || r.EstimateError != 0.25 ||
		r.KnownPrefixes.Source != "events" || r.KnownPrefixes.Blocks != 12 {
		t.Errorf("report: %v", r)
	}
	if r := Encode("m", frontend.Status{EngineHung: true, Draining: true}); !r.EngineHung || r.EngineReady || !r.Draining {
		t.Errorf("a hung engine is reported as %v", r)
	}
}

// TestReplies checks that reports are sent on time, that a reply is passed on at once, and that an unavailable control
// plane revokes none.
func TestReplies(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		if r := <-w.replies; r.Drain || r.Refine != nil || r.Epoch != 7 || r.StageMeanHeld != 12.5 {
			t.Errorf("first: %+v", r)
		}
		<-w.got
		for i := range uint64(3) {
			r := <-w.got
			if want := time.Duration(i+1) * defaultInterval; r.at != want || r.Sequence != i+2 || r.Replica != "r0" || r.Model != "m" || !r.EngineReady {
				t.Errorf("at %v: %v, want %v", r.at, r.LoadReport, want)
			}
			<-w.replies
		}
		w.reply.Store(&api.LoadReply{Drain: true, Refine: &api.Refine{Epoch: 7, Boundary: 512, High: 1024, Peers: 2, Successors: 1}})
		sent := time.Now()
		if r := <-w.replies; !r.Drain || r.Refine.GetBoundary() != 512 || time.Since(sent) != defaultInterval {
			t.Errorf("a drain: %+v after %v", r, time.Since(sent))
		}
		away := error(status.Error(codes.Unavailable, "away"))
		w.refuse.Store(&away)
		time.Sleep(time.Minute)
		for len(w.replies) > 0 {
			if r := <-w.replies; !r.Drain {
				t.Errorf("away: %+v", r)
			}
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
		w.report.Store(&api.LoadReport{Topology: a})
		next(a)
		next(a) // no reply has arrived
		synctest.Wait()
		w.mute.Store(false)
		next(a) // the answer arrives after this report was sent
		next(nil)
		next(nil)
		w.report.Store(&api.LoadReport{Topology: b})
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
		report := func(moves ...*api.Migration) { w.report.Store(&api.LoadReport{Migrations: moves}) }
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
		if w.streams[0].known.mu.Lock(); len(w.streams[0].known.migrations) != 0 {
			t.Errorf("%d ended migrations are remembered", len(w.streams[0].known.migrations))
		}
		w.streams[0].known.mu.Unlock()
	})
}

func TestReportsChangesAtOnce(t *testing.T) {
	runHarness(t, func(t *testing.T, w *harness) {
		<-w.got
		time.Sleep(10 * time.Millisecond)
		w.report.Store(&api.LoadReport{Draining: true})
		w.changed <- struct{}{}
		if r := <-w.got; !r.Draining || r.at != 10*time.Millisecond {
			t.Errorf("after %v: %v", r.at, r.LoadReport)
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
	good := Config{Conn: &grpc.ClientConn{}, Replica: "r", Model: "m", Report: func() *api.LoadReport { return nil }}
	testkit.Must(New(good))
	for field, change := range map[string]func(*Config){
		"Replica": func(c *Config) { c.Replica = "" }, "Model": func(c *Config) { c.Model = "" },
		"Conn": func(c *Config) { c.Conn = nil }, "Report": func(c *Config) { c.Report = nil }, "Interval": func(c *Config) { c.Interval = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("without %s: %v", field, err)
		}
	}
}
