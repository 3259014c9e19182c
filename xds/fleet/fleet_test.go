package fleet

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/internal/plantest"
	"github.com/cascadeinfer/cascade/xds/internal/reportservice"
	"github.com/cascadeinfer/cascade/xds/internal/weights"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// snapshotRecorder is a Publisher that records all snapshots.
type snapshotRecorder struct {
	mu   sync.Mutex
	list []*Snapshot
}

func (s *snapshotRecorder) Publish(snap *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, snap)
}

func (s *snapshotRecorder) last() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return nil
	}
	return s.list[len(s.list)-1]
}

// harness is a running Fleet behind a gRPC server, inside a synctest bubble.
type harness struct {
	*Fleet
	t     *testing.T
	shown *snapshotRecorder
	api   api.FleetClient
	stop  func()
}

func newHarness(t *testing.T, st store.Store, counters Counters) *harness {
	t.Helper()
	h := &harness{t: t, shown: new(snapshotRecorder)}
	f, err := New(Config{
		Rules:    testRules(PolicyDefault),
		Replicas: []policies.Replica{testReplica("r0"), testReplica("r1")},
		Store:    st, Counters: counters, Publisher: h.shown,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.Fleet = f
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	server := grpc.NewServer()
	api.RegisterFleetServer(server, f.Service())
	lis := bufconn.Listen(1 << 16)
	wg.Go(func() { _ = server.Serve(lis) })
	conn, err := grpc.NewClient("passthrough:///fleet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	h.api = api.NewFleetClient(conn)
	h.stop = func() {
		cancel()
		synctest.Wait()
		conn.Close()
		server.Stop()
		wg.Wait()
	}
	synctest.Wait()
	return h
}

// report sends one report on the stream and returns the reply.
func report(t *testing.T, s api.Fleet_ReportClient, id string, ready bool) (*api.LoadReply, error) {
	t.Helper()
	if err := s.Send(&api.LoadReport{Replica: id, Model: "m", Sequence: 1, EngineReady: ready, Load: &api.Load{HeldTokens: 500}}); err != nil {
		_, err := s.Recv() // the status that ended the stream
		return nil, err
	}
	return s.Recv()
}

func (h *harness) open() api.Fleet_ReportClient {
	h.t.Helper()
	s, err := h.api.Report(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func wantCode(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %v with %q", err, code, text)
	}
}

func TestFleetReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, new(store.Memory), nil)
		defer h.stop()
		if s := h.shown.last(); s == nil || plantest.Format(s.Models[0].Plan) != "r0 r1" {
			t.Fatalf("nothing good is shown at start: %+v", s)
		}
		s := h.open()
		reply, err := report(t, s, "r0", true)
		if err != nil || reply.GetEpoch() != 1 || reply.GetSequence() != 1 {
			t.Fatalf("reply %v, %v", reply, err)
		}
		// r1 does not report and is taken out of rotation; r0 continues.
		for range 7 {
			time.Sleep(time.Second)
			if reply, err := report(t, s, "r0", true); err != nil || reply.GetStageMeanHeld() != 500 {
				t.Fatal(reply, err)
			}
		}
		synctest.Wait()
		m := h.Snapshot().Models[0]
		if m.Replicas[0].Health != resources.Healthy || m.Replicas[1].Health != resources.Unhealthy {
			t.Errorf("health %v, %v", m.Replicas[0].Health, m.Replicas[1].Health)
		}
		// The stream of r0 cannot report for r1.
		_, err = report(t, s, "r1", true)
		wantCode(t, err, codes.InvalidArgument, "cannot report for")
	})
}

func TestFleetRefusesReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, new(store.Memory), nil)
		defer h.stop()
		_, err := report(t, h.open(), "r9", true)
		wantCode(t, err, codes.NotFound, "not configured")
		s := h.open()
		if err := s.Send(&api.LoadReport{Replica: "r0", Model: "other"}); err != nil {
			t.Fatal(err)
		}
		_, err = s.Recv()
		wantCode(t, err, codes.NotFound, "configured for model")
		s = h.open()
		if err := s.Send(&api.LoadReport{}); err != nil {
			t.Fatal(err)
		}
		_, err = s.Recv()
		wantCode(t, err, codes.InvalidArgument, "replica")
		if taken, refused := h.ReportCounts(); taken != 0 || refused != 3 {
			t.Errorf("%d reports taken, %d streams refused", taken, refused)
		}
	})
}

// TestFleetOneStreamPerReplica checks that a second stream is refused while the first
// one reports, and replaces it once the first one is silent.
func TestFleetOneStreamPerReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, new(store.Memory), nil)
		defer h.stop()
		first := h.open()
		if _, err := report(t, first, "r0", true); err != nil {
			t.Fatal(err)
		}
		_, err := report(t, h.open(), "r0", true)
		wantCode(t, err, codes.AlreadyExists, "another stream")
		time.Sleep(reportservice.TakeOver)
		second := h.open()
		if _, err := report(t, second, "r0", true); err != nil {
			t.Fatal(err)
		}
		_, err = first.Recv()
		wantCode(t, err, codes.Aborted, "newer stream")
		synctest.Wait()
		if !h.connected("r0") {
			t.Error("the end of the old stream closed the new one's replica")
		}
		if err := second.CloseSend(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxTick)
		synctest.Wait()
		if h.connected("r0") {
			t.Error("r0 counts as connected after its stream ended")
		}
	})
}

func (h *harness) connected(id policies.ReplicaID) bool {
	for _, r := range h.Snapshot().Models[0].Replicas {
		if r.ID == id {
			return r.Connected
		}
	}
	return false
}

func TestFleetBoundsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, new(store.Memory), nil)
		defer h.stop()
		flood := h.open()
		n := 0
		var err error
		for ; n < 2*reportservice.ReportBurst && err == nil; n++ {
			_, err = report(t, flood, "r0", true)
		}
		wantCode(t, err, codes.ResourceExhausted, "reports a second")
		if n < reportservice.ReportBurst {
			t.Errorf("refused after %d reports, the burst is %d", n, reportservice.ReportBurst)
		}
		silent := h.open()
		if _, err := report(t, silent, "r1", true); err != nil {
			t.Fatal(err)
		}
		_, err = silent.Recv() // blocks until the bubble's clock has advanced
		wantCode(t, err, codes.DeadlineExceeded, "no load report")
	})
}

func TestFleetSetReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, new(store.Memory), nil)
		defer h.stop()
		if err := h.SetReplicas([]policies.Replica{testReplica("r0"), testReplica("r0")}); err == nil {
			t.Error("a doubled replica is taken")
		}
		drained := testReplica("r1")
		drained.Draining = true
		if err := h.SetReplicas([]policies.Replica{testReplica("r0"), drained, testReplica("r2")}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		m := h.shown.last().Models[0]
		if m.Replicas[1].Health != resources.Draining || m.Replicas[2].Health != resources.Unhealthy || m.Replicas[2].Stage != -1 {
			t.Errorf("%+v", m.Replicas)
		}
		if _, err := report(t, h.open(), "r2", true); err != nil {
			t.Fatal(err)
		}
		if got := plantest.Format(h.shown.last().Models[0].Plan); got != "r0 r2" {
			t.Errorf("plan %q", got)
		}
	})
}

// TestFleetRestart checks that a fleet that restarts with the same store and counters
// publishes the same snapshot under the same epoch.
func TestFleetRestart(t *testing.T) {
	dir := t.TempDir()
	counters := CounterFile{filepath.Join(dir, "counters.json")}
	synctest.Test(t, func(t *testing.T) {
		st := new(store.Memory)
		h := newHarness(t, st, counters)
		s0, s1 := h.open(), h.open()
		for range 3 {
			if err := s0.Send(&api.LoadReport{Replica: "r0", Model: "m", EngineReady: true, Load: &api.Load{HeldTokens: 90_000}}); err != nil {
				t.Fatal(err)
			}
			if err := s1.Send(&api.LoadReport{Replica: "r1", Model: "m", EngineReady: true, Load: &api.Load{HeldTokens: 10_000}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		before := h.shown.last()
		if w := before.Models[0].Replicas[0].Weight; w >= weights.Neutral {
			t.Fatalf("the loaded replica has weight %d", w)
		}
		h.stop()

		h = newHarness(t, st, counters)
		defer h.stop()
		after := h.shown.last()
		if routing(after) != routing(before) || after.Epoch != before.Epoch || plantest.Format(after.Models[0].Plan) != plantest.Format(before.Models[0].Plan) {
			t.Errorf("before: epoch %d%s\nafter: epoch %d%s", before.Epoch, routing(before), after.Epoch, routing(after))
		}
		if len(after.History) != 1 || after.Models[0].Reason != "first plan" {
			t.Errorf("history %+v, reason %q", after.History, after.Models[0].Reason)
		}
	})
}

// brokenStore is a store whose writes fail, or whose content cannot be read.
type brokenStore struct {
	store.Memory
	full atomic.Bool
	read error
}

func (b *brokenStore) CompareAndSwap(ctx context.Context, old store.Version, o store.Object) (store.Version, error) {
	if b.full.Load() {
		return "", errors.New("disk full")
	}
	return b.Memory.CompareAndSwap(ctx, old, o)
}

func (b *brokenStore) Watch(ctx context.Context) <-chan store.Update {
	if b.read == nil {
		return b.Memory.Watch(ctx)
	}
	ch := make(chan store.Update, 1)
	ch <- store.Update{Err: b.read}
	close(ch)
	return ch
}

func TestFleetStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := new(brokenStore)
		st.full.Store(true)
		h := newHarness(t, st, nil)
		defer h.stop()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if h.shown.last() != nil {
			t.Error("a plan that was not stored is shown")
		}
		st.full.Store(false)
		time.Sleep(2 * retryDelay)
		synctest.Wait()
		if h.shown.last() == nil {
			t.Error("nothing is shown after the store works again")
		}
	})
	f, err := New(Config{Rules: testRules(""), Replicas: []policies.Replica{testReplica("r0")}, Store: &brokenStore{read: errors.New("garbage")}, Publisher: new(snapshotRecorder)})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "garbage") {
		t.Errorf("an unreadable plan at start: %v", err)
	}
}

// TestFleetFollowsTheStore checks that a plan that another server wrote comes into
// force.
func TestFleetFollowsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := new(store.Memory)
		h := newHarness(t, st, nil)
		defer h.stop()
		u := <-st.Watch(t.Context())
		plan := plantest.Parse("r0 | r1")
		plan.Epoch = 9
		if _, err := st.CompareAndSwap(t.Context(), u.Version, store.Object{Epoch: 9, Plans: []policies.Plan{plan}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := h.shown.last(); s.Epoch != 9 || plantest.Format(s.Models[0].Plan) != "r0 |100| r1" {
			t.Errorf("epoch %d: %s", s.Epoch, plantest.Format(s.Models[0].Plan))
		}
	})
}

// slowStore is a store whose watch delivers the updates that the test sends.
type slowStore struct {
	store.Memory
	updates chan store.Update
}

func (s *slowStore) Watch(context.Context) <-chan store.Update { return s.updates }

// TestFleetConfirmsWritesLate uses a watch that has read the first plan and delivers it
// after the second one was stored. The fleet can still store a third plan, and a later
// plan of another server comes into force.
func TestFleetConfirmsWritesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowStore{updates: make(chan store.Update, 1)}
		st.updates <- store.Update{}
		h := newHarness(t, st, nil)
		defer h.stop()
		defer close(st.updates)
		configure := func(ids ...string) {
			t.Helper()
			var list []policies.Replica
			for _, id := range ids {
				list = append(list, testReplica(id))
			}
			if err := h.SetReplicas(list); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		stored := func() store.Update {
			ctx, cancel := context.WithCancel(t.Context())
			watch := st.Memory.Watch(ctx)
			u := <-watch
			cancel()
			for range watch {
			}
			return u
		}
		deliver := func(u store.Update) {
			st.updates <- u
			synctest.Wait()
		}
		first := stored()
		configure("r0")
		last := stored()
		if first.Version == last.Version {
			t.Fatal("the second plan was not stored")
		}
		deliver(first)
		deliver(last)
		configure("r0", "r1")
		if _, err := report(t, h.open(), "r1", true); err != nil {
			t.Fatal(err)
		}
		last = stored()
		if got := plantest.Format(last.Object.Plans[0]); last.Object.Epoch != 3 || got != "r0 r1" {
			t.Fatalf("the third plan was not stored: epoch %d, %s", last.Object.Epoch, got)
		}
		other := last.Object
		other.Epoch, other.Plans[0].Epoch = 9, 9
		v, err := st.CompareAndSwap(t.Context(), last.Version, other)
		if err != nil {
			t.Fatal(err)
		}
		deliver(last)
		deliver(store.Update{Object: other, Version: v})
		if got := h.shown.last().Epoch; got != 9 {
			t.Errorf("epoch %d is shown, another server wrote 9", got)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	good := func() Config {
		return Config{Rules: testRules(""), Replicas: []policies.Replica{testReplica("r0")}, Store: new(store.Memory), Publisher: new(snapshotRecorder)}
	}
	for _, c := range []struct {
		edit func(*Config)
		want string
	}{
		{func(c *Config) { c.Models = nil }, "models"},
		{func(c *Config) { c.Models[0].Name = "" }, "name"},
		{func(c *Config) { c.Models = append(c.Models, c.Models[0]) }, "twice"},
		{func(c *Config) { c.Models[0].Context = 0 }, "context"},
		{func(c *Config) { c.Models[0].Cost.D0 = 0 }, "cost"},
		{func(c *Config) { c.Models[0].BytesPerToken = 1 }, "bytes per token"},
		{func(c *Config) { c.Models[0].Edges = []policies.Tokens{1} }, "edges"},
		{func(c *Config) { c.Policy = "guess" }, "policy"},
		{func(c *Config) { c.Speed = -1 }, "speed"},
		{func(c *Config) { c.Period = -1 }, "period"},
		{func(c *Config) { c.Replicas = nil }, "no replica"},
		{func(c *Config) { c.Replicas[0].Address = "host:80" }, "IP address"},
		{func(c *Config) { c.Replicas[0].Model = "x" }, "no model"},
		{func(c *Config) { c.Store = nil }, "Store"},
		{func(c *Config) { c.Publisher = nil }, "Publisher"},
	} {
		cfg := good()
		c.edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error about %q, got %v", c.want, err)
		}
	}
	if _, err := New(good()); err != nil {
		t.Error(err)
	}
}
