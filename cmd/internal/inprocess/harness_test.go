package inprocess

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

const (
	patience = harness.Patience
	forever  = harness.Forever
	llm      = harness.Model // its context is 131072
	tick     = 2 * time.Millisecond
)

// plane is a set of data planes in front of a fleet.
type plane uint8

// The data planes. A test names those that can affect its result; with CASCADE_TEST_ALL=1 every
// test runs on both.
const (
	onProxy plane = 1 << iota // the embedded proxy
	onEnvoy                   // real Envoy
	onBoth  = onProxy | onEnvoy
)

// planes runs a test on data planes, in parallel with other tests: fleets wait more than they compute. The test gets
// the path of the Envoy binary, or "" for the embedded proxy.
func planes(t *testing.T, on plane, test func(t *testing.T, envoy string)) {
	t.Parallel()
	if everything {
		on = onBoth
	}
	if on&onProxy != 0 {
		t.Run("proxy", func(t *testing.T) { t.Parallel(); test(t, "") })
	}
	if on&onEnvoy != 0 {
		t.Run("envoy", func(t *testing.T) { t.Parallel(); test(t, envoytest.Binary(t)) })
	}
}

// fleetHarness is a running fleet with the handles that a test needs.
type fleetHarness struct {
	*Fleet
	*harness.Clients
	parts    *parts
	sockets  *sockets
	store    *store.Store
	plans    sync.Map                        // by epoch, of the requests whose stage a load checks
	placed   map[string]*atomic.Int64        // requests that each front end received from clients
	server   atomic.Pointer[control.Control] // the running control plane
	fronts   map[string]*frontend.Server     // the running front ends
	daemons  map[string]*migratord.Daemon    // the running migrators, to which the front ends belong
	handOver bool                            // of its configuration
	object   store.Object                    // last stored
	version  store.Version
}

// harnessConfig configures a fleet for a test.
type harnessConfig struct {
	envoy    string // "" is the embedded proxy
	replicas int
	edit     func(*config.Fleet)                 // called before the file is checked
	front    func(id string, c *frontend.Config) // called before a front end is built
	engine   func(*emulator.Config)              // called before an engine is built
	migrator func(*migratord.Config)             // called before a migrator is built
	control  func(*control.Config)               // called before the control plane is built
	handOver bool                                // engines have KV connectors in place of block tables
}

// keepReplicas makes the control plane wait so long before a replica counts as lost that a busy host loses none.
func keepReplicas(c *control.Config) { c.Grace = patience }

// newFleetHarness runs a fleet until the test ends. The fleet does not plan by itself: the planning
// period is an hour. It tolerates a host so busy that processes stand still for seconds: with the usual timeouts the
// estimator would answer too late and the model be unknown, proxies would close connections whose pings are late, and
// engines would count as hung.
func newFleetHarness(t *testing.T, s harnessConfig) *fleetHarness {
	t.Helper()
	f := config.Fleet{
		Speed:   10,
		Models:  []config.Model{{Name: llm, Context: 131072, Profile: "testdata/steady.json"}},
		Control: config.Control{Listen: address(t), Admin: address(t)},
		Proxy:   config.Proxy{Listen: address(t)},
		Planner: config.Planner{Period: time.Hour},
		// Requests that these tests count must not migrate.
		Migration: config.Migration{Mode: config.MigrationOff},
	}
	for i := range s.replicas {
		f.Replicas = append(f.Replicas, config.Replica{ID: fmt.Sprintf("r%d", i), Model: llm, Address: address(t), Peer: address(t), Engine: "http://" + address(t)})
	}
	if s.handOver {
		top := testkit.Must(os.MkdirTemp("", "kv")) // the path of t.TempDir is too long for sockets
		t.Cleanup(func() { os.RemoveAll(top) })
		for i, n := range f.Replicas {
			f.Replicas[i].Connector = filepath.Join(top, n.ID)
		}
	}
	if s.edit != nil {
		s.edit(&f)
	}
	if errs := f.Validate(); len(errs) > 0 {
		t.Fatal(errs[0])
	}
	file, err := wiring.Resolve(f, ".")
	testkit.NoError(t, err)
	r := &fleetHarness{
		parts: &parts{by: make(map[string]*part)}, sockets: &sockets{by: make(map[string]*socket)},
		placed: make(map[string]*atomic.Int64), fronts: make(map[string]*frontend.Server), daemons: make(map[string]*migratord.Daemon),
	}
	for _, n := range f.Replicas {
		r.placed[n.ID] = new(atomic.Int64)
	}
	cfg := Config{Fleet: file, Envoy: s.envoy, Drain: time.Second, Logger: logger(t)}
	cfg.hooks = hooks{listen: r.sockets.listen, part: r.parts.run, engine: s.engine, migrator: s.migrator, front: func(c *frontend.Config) {
		c.HangTimeout, c.MinPause = time.Minute, time.Minute
		if s.front != nil {
			s.front(string(c.Replica), c)
		}
		c.Placer = counting{r.placed[string(c.Replica)], c.Placer}
	}}
	if f.State == "" {
		r.store = store.New(store.NewMemory())
	}
	cfg.hooks.control = func(c *control.Config) {
		if f.State == "" {
			c.Store = r.store
		}
		c.Settings.LengthTimeout, c.Settings.PingTimeout = patience, patience
		if s.control != nil {
			s.control(c)
		}
	}
	if r.Fleet, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if f.State != "" {
		cc, err := r.cfg.Fleet.Control(cfg.Logger)
		testkit.NoError(t, err)
		r.store = cc.Store
	}
	r.server.Store(r.control)
	var adapters []string
	for _, a := range f.Models[0].Adapters {
		adapters = append(adapters, a.Name)
	}
	r.Clients = &harness.Clients{
		T: t, DataPlane: r.URL(), Admin: r.AdminURL(), HTTP: harness.NewHTTP(), State: r.describe,
		Engine: emulator.Config{Model: llm, Adapters: adapters, Context: f.Models[0].Context, Profile: r.cfg.Fleet.Profiles[llm], Vocabulary: r.vocabulary},
	}
	for _, n := range r.replicas {
		r.fronts[string(n.id)], r.daemons[string(n.id)] = n.migrator.Frontend(), n.migrator
	}
	r.handOver = s.handOver
	r.run()
	return r
}

// spare holds the addresses of fleets that have ended.
var spare = make(chan string, 1000)

// address returns an address that no other process gets until the test ends: a component that is
// killed can bind it again when it restarts.
func address(t *testing.T) (a string) {
	select {
	case a = <-spare:
	default:
		a = testkit.Addresses(t, 1)[0]
	}
	t.Cleanup(func() {
		select {
		case spare <- a:
		default:
		}
	})
	return a
}

// run runs the fleet and waits until it answers.
func (r *fleetHarness) run() {
	t := r.T
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		r.HTTP.CloseIdleConnections()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error("Run:", err)
			}
		case <-time.After(2 * patience):
			t.Error("the fleet does not stop")
		}
	})
	ready, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := r.Ready(ready); err != nil {
		t.Fatal("not ready:", err)
	}
	r.waitForStatus("every replica is heard", allHealthy)
	if r.cfg.Fleet.Migrates() && r.cfg.Fleet.Migration.Mode == config.MigrationLive && !r.handOver {
		// Before that, requests migrate by re-prompting.
		r.WaitFor("every engine shows its block table", func() bool {
			for _, d := range r.daemons {
				if !d.Live() {
					return false
				}
			}
			return true
		})
	}
}

// allHealthy reports whether every replica has reported and is healthy.
func allHealthy(s control.Status) bool {
	for _, n := range harness.Replicas(s) {
		if n.ReportAge == nil || !n.Connected || n.Health != "healthy" {
			return false
		}
	}
	return true
}

// logger writes to the test's log. A failed test shows it.
func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// counting counts the requests of a front end's own clients.
type counting struct {
	n    *atomic.Int64
	next frontend.Placer
}

// Prefills implements frontend.Placer.
func (c counting) Prefills() bool { return c.next != nil && c.next.Prefills() }

func (c counting) HasHolders() bool { return c.next != nil && c.next.HasHolders() }

// Place implements frontend.Placer.
func (c counting) Place(q policies.Request, steps []prefix.Step) policies.Target {
	c.n.Add(1)
	if c.next == nil {
		return policies.Target{}
	}
	return c.next.Place(q, steps)
}

// waitForStatus waits until the control plane's status meets a condition.
func (r *fleetHarness) waitForStatus(what string, holds func(control.Status) bool) control.Status {
	r.T.Helper()
	var s control.Status
	r.WaitFor(what, func() bool { s = r.server.Load().Status(); return holds(s) })
	return s
}

// describe says what each part of the fleet does.
func (r *fleetHarness) describe() string {
	var b strings.Builder
	b.WriteString(summarize(r.server.Load().Status()))
	for _, n := range r.cfg.Fleet.Fleet.Replicas {
		d := r.daemons[n.ID]
		s := d.Frontend().Status()
		fmt.Fprintf(&b, "%s: engine ready %v, %d hangs; %d running, %d waiting; has %s", n.ID, s.EngineReady, s.EngineHangs, s.Load.Running, s.Load.Waiting, r.migratorWork(n.ID))
		if d.Executor() != nil {
			m := d.Market().Status()
			fmt.Fprintf(&b, "; %d fresh peers, %d forwards, %.1f times slower than its profile; sold %v, returned %v", m.FreshPeers, m.Forwards, m.Slowdown, m.MovedOut, m.Returned)
		}
		b.WriteByte('\n')
	}
	_, failed := r.migrations()
	for _, m := range failed[max(0, len(failed)-10):] {
		fmt.Fprintf(&b, "%s from %s to %s failed: %s by %s: %s\n", m.Request, m.From, m.To, m.Cause, m.Mode, m.Failure)
	}
	return b.String()
}

// summarize summarises a status in a few lines.
func summarize(s control.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "epoch %d, shown %d, phase %s, %s\n", s.Epoch, s.PublishedEpoch, s.Phase, s.Error)
	for _, m := range s.Models {
		fmt.Fprintf(&b, "%s: epoch %d, %s, %s\n", m.Name, m.Epoch, m.Reason, m.Planner)
		for _, st := range m.Stages {
			fmt.Fprintf(&b, "  from %d:", st.Low)
			for _, n := range st.Replicas {
				fmt.Fprintf(&b, " %s (%s %s, weight %d, %d running)", n.ID, n.Health, n.HealthReason, n.Weight, n.Running)
			}
			b.WriteByte('\n')
		}
	}
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, "%s: epoch %d, connected %v, current %v, fenced %v, %d NACKs %s\n", n.ID, n.Epoch, n.Connected, n.Current, n.Fenced, n.NACKs, n.LastError)
	}
	return b.String()
}

// newLoad starts a load. Each body has one of the sizes, and each answer has output tokens. The load checks the stage of
// requests that were routed by an expected plan.
func (r *fleetHarness) newLoad(workers, output int, sizes ...int) *harness.Load {
	r.T.Helper()
	return r.NewLoad(harness.LoadConfig{
		Workers: workers,
		Body:    func(_ int, rng *rand.Rand) []byte { return prompt(sizes[rng.IntN(len(sizes))], output) },
		Check: func(sent []byte, resp *http.Response) error {
			got := replyOf(resp)
			if got.stage == "" || got.epoch == 0 {
				return errors.New("the answer names no stage")
			}
			if p, ok := r.plans.Load(got.epoch); ok {
				plan := p.(policies.Plan)
				// Four bytes per token, by content-length.
				if stage := resources.StageName(plan.StageOf(policies.Tokens(len(sent) / 4))); got.stage != stage {
					return fmt.Errorf("stage %s by epoch %d, want %s", got.stage, got.epoch, stage)
				}
			}
			return nil
		},
	})
}

// replica returns a replica of the fleet file, with its real addresses.
func (r *fleetHarness) replica(id string) config.Replica {
	r.T.Helper()
	n, err := r.cfg.Fleet.Replica(id)
	testkit.NoError(r.T, err)
	return n
}

// counts returns how many requests each front end has received from clients so far.
func (r *fleetHarness) counts() map[string]int64 {
	out := make(map[string]int64, len(r.placed))
	for id, n := range r.placed {
		out[id] = n.Load()
	}
	return out
}

// countsSince returns how many requests each replica received after before was recorded.
func (r *fleetHarness) countsSince(before map[string]int64) map[string]int64 {
	out := r.counts()
	maps.DeleteFunc(out, func(id string, n int64) bool { return n == before[id] })
	for id := range out {
		out[id] -= before[id]
	}
	return out
}
