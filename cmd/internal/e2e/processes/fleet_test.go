package processes

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// llm is the model of every fleet in this package.
const llm = harness.Model

// forever is the output of streams that outlast their test, however slow the host is: more than a minute at the speed
// of the fleets, and close to the context.
const forever = 14_000

// steady is the cost of every engine: 20 ms per token, independent of other requests, and prompts
// in no time.
const steady = `{"name": "steady", "source": "made up for tests", "unit": "seconds", "d0": 0.02, "d1": 0, "d2": 1e-8, "d3": 0, "d4": 0,
"kappa": 0, "kv_bytes_per_token": 131072, "kv_tokens": 65536, "max_batch": 64, "ranks": 1, "fit_error": {"p50": 0, "p90": 0, "points": 0}}`

// fleet is a running fleet, with a process per component.
type fleet struct {
	*harness.Clients
	dir      string // directory of the files; its path is short
	file     config.Fleet
	replicas []*replica
	control  *harness.Daemon // the only control plane
	planes   []*plane        // the control planes, if there are several
	envoy    *envoytest.Process
	proxy    *harness.Daemon   // nil if Envoy is the data plane
	library  string            // of the GPUs that hold the engines' KV; "": host memory does
	faults   map[string]string // see setup
	rdma     string            // see setup
	limits   map[string]int
	log      []string
	proxyEnv []string // additional environment variables of proxies that are started from now on
}

// logArgs returns a daemon's arguments about its log: those of the setup, else its defaults.
func (f *fleet) logArgs(defaults ...string) []string {
	if f.log != nil {
		return f.log
	}
	return defaults
}

// replica is an engine and its migrator.
type replica struct {
	f *fleet
	config.Replica
	file             string   // the fleet file of its processes
	env              []string // additional environment variables of its migrators from now on
	engine, migrator *harness.Daemon
}

// setup configures a fleet.
type setup struct {
	envoy    bool
	replicas int
	planes   int                 // number of control planes; 0 means one
	edit     func(*config.Fleet) // edits the file before it is written
	files    map[string][]byte   // written beside the fleet file
	library  string              // of the GPUs for the engines' KV; "": none
	faults   map[string]string   // FAKE_CUDA_FAIL of the GPUs, by the replica whose migrator uses them
	rdma     string              // library of the migrators' RDMA devices; "": none
	log      []string            // arguments of every daemon about its log; nil: the defaults of this package
	limits   map[string]int      // descriptors that a replica's migrator may open; none for no entry
	engine   func(r *replica)    // runs a replica's engine, at its address; nil: a process of ours does
	// published edits a replica for the control plane's fleet file; nil changes nothing.
	published func(*config.Replica)
}

// newFleet runs a fleet until the test ends, and returns once it serves.
func newFleet(t testing.TB, s setup) *fleet {
	t.Helper()
	dir, err := os.MkdirTemp("", "fleet")
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &fleet{dir: dir, library: s.library, faults: s.faults, rdma: s.rdma, limits: s.limits, log: s.log}
	s.planes = max(1, s.planes)
	a := testkit.Addresses(t, 3+4*s.replicas+2*(s.planes-1))
	f.file = config.Fleet{
		Speed:   4,
		Models:  []config.Model{{Name: llm, Context: 16384, Profile: "steady.json"}},
		Control: config.Control{Listen: a[0], Admin: a[1]},
		Proxy:   config.Proxy{Listen: a[2], Nodes: []string{"edge", "edge-*"}},
		Planner: config.Planner{Period: time.Hour},
	}
	for i := range s.replicas {
		b, id := a[3+4*i:], "r"+strconv.Itoa(i)
		f.file.Replicas = append(f.file.Replicas, config.Replica{ID: id, Address: b[0], Peer: b[1], Admin: b[2], Engine: "http://" + b[3], Blocks: id})
	}
	if s.planes > 1 {
		f.file.State = "state"
		others := a[3+4*s.replicas:]
		for i := range s.planes {
			p := &plane{f: f, name: string(rune('a' + i)), listen: a[0], admin: a[1]}
			if i > 0 {
				p.listen, p.admin = others[2*i-2], others[2*i-1]
				f.file.Control.Peers = append(f.file.Control.Peers, p.listen)
			}
			f.planes = append(f.planes, p)
		}
	}
	if s.edit != nil {
		s.edit(&f.file)
	}
	var profile cost.Profile
	testkit.NoError(t, json.Unmarshal([]byte(steady), &profile))
	f.Clients = &harness.Clients{
		T: t, DataPlane: "http://" + f.file.Proxy.Listen, Admin: "http://" + f.file.Control.Admin, HTTP: harness.NewHTTP(),
		Engine: emulator.Config{Model: llm, Context: f.file.Models[0].Context, KVTokens: f.file.Models[0].KVTokens, Profile: profile},
	}
	t.Cleanup(f.HTTP.CloseIdleConnections)
	f.write("steady.json", []byte(steady))
	for name, data := range s.files {
		f.write(name, data)
	}
	f.writeFleet("own.yaml", f.file)
	shown := f.file
	shown.Replicas = append([]config.Replica(nil), f.file.Replicas...)
	if s.published != nil {
		for i := range shown.Replicas {
			s.published(&shown.Replicas[i])
		}
	}
	f.writeFleet("fleet.yaml", shown)

	if s.planes > 1 {
		for i, p := range f.planes {
			p.start()
			if i == 0 {
				p.await("plans", func(s control.Status) bool { return s.Planner.Leads })
			}
		}
	} else {
		f.startControl()
	}
	for _, r := range f.file.Replicas {
		r := &replica{f: f, Replica: r, file: f.path("own.yaml")}
		if s.engine != nil {
			s.engine(r)
		} else {
			r.startEngine()
		}
		r.startMigrator()
		f.replicas = append(f.replicas, r)
	}
	if s.envoy {
		args := []string{"envoy-bootstrap", "-c", f.path("fleet.yaml"), "--node-id", "edge", "--admin", "127.0.0.1:0"}
		var boot string
		if dir := shown.TLS.EnvoyDir; shown.TLS.ServesRequests() {
			command(t, append(args, "--out", dir)...)
			boot = string(testkit.Must(os.ReadFile(filepath.Join(dir, "bootstrap.json"))))
		} else {
			boot = command(t, args...)
		}
		f.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: boot})
	} else {
		f.startProxy()
	}
	f.awaitURL(f.DataPlane+"/v1/models", llm)
	for _, r := range f.replicas {
		f.AwaitServing(r.ID)
	}
	return f
}

func (f *fleet) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fleet) write(name string, data []byte) {
	f.T.Helper()
	testkit.NoError(f.T, os.WriteFile(f.path(name), data, 0o600))
}

func (f *fleet) writeFleet(name string, c config.Fleet) {
	f.T.Helper()
	data, err := yaml.Marshal(c)
	testkit.NoError(f.T, err)
	f.write(name, data)
}

func (f *fleet) startControl() {
	f.T.Helper()
	f.control = start(f.T, append([]string{"control", "-c", f.path("fleet.yaml")}, f.logArgs()...)...)
	f.control.WaitForLog("control plane of")
}

// startProxy starts the embedded proxy. Another one may still run.
func (f *fleet) startProxy(more ...string) {
	f.T.Helper()
	args := append([]string{"proxy", "-c", f.path("fleet.yaml"), "--node-id", "edge", "--runtime-dir", f.path("run")}, more...)
	f.proxy = harness.Command{Binary: cascade, Args: append(args, f.logArgs("--log", "error")...), Env: f.proxyEnv}.Start(f.T)
}

func (r *replica) startEngine() {
	r.f.T.Helper()
	args := append([]string{"engine", "-c", r.file, "--replica", r.ID}, r.f.logArgs()...)
	if r.f.library != "" {
		args = append(args, "--device", "cuda")
	}
	r.engine = harness.Command{Binary: cascade, Args: args, Env: r.f.env()}.Start(r.f.T)
	r.engine.WaitForLog("emulating")
}

// env returns the environment variables that describe a fleet's GPUs and RDMA devices to its
// processes.
func (f *fleet) env() (env []string) {
	if f.library != "" {
		env = append(env, "CASCADE_TEST_LIBCUDA="+f.library)
	}
	if f.rdma != "" {
		env = append(env, "CASCADE_TEST_LIBIBVERBS="+f.rdma, "FAKE_VERBS_FABRIC="+f.path("fabric"))
	}
	return env
}

// startMigrator starts the replica's migrator. Another one may still run.
func (r *replica) startMigrator() {
	r.f.T.Helper()
	env := append(r.f.env(), r.env...)
	if faults := r.f.faults[r.ID]; faults != "" {
		env = append(env, "FAKE_CUDA_FAIL="+faults)
	}
	args := append([]string{"migrator", "-c", r.file, "--replica", r.ID, "--runtime-dir", r.f.path("run")}, r.f.logArgs("--log", "info")...)
	r.migrator = harness.Command{Binary: cascade, Args: args, Env: env, Descriptors: r.f.limits[r.ID]}.Start(r.f.T)
	r.migrator.WaitForLog("migrator of " + r.ID + ": .*reports to")
}

// awaitURL waits until GET returns 200 and a body that matches.
func (f *fleet) awaitURL(url, pattern string) {
	f.T.Helper()
	re := regexp.MustCompile(pattern)
	f.WaitFor(url+" matches "+pattern, func() bool {
		body, err := f.Get(url)
		return err == nil && re.MatchString(body)
	})
}

// cascade runs an operator's command against the fleet.
func (f *fleet) cascade(args ...string) string {
	f.T.Helper()
	return command(f.T, append(args, "--control", f.Admin)...)
}

// migrations returns the migrations that the control plane reports.
func (f *fleet) migrations() []control.Migration {
	f.T.Helper()
	var m control.Migrations
	text := f.cascade("migrations", "--json", "--limit", "512")
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		f.T.Fatalf("migrations --json: %v: %s", err, text)
	}
	return m.Migrations
}

// gauge returns the value of a metric on a metrics page: the sum of its series.
func gauge(page, name string) (sum float64, ok bool) {
	for line := range strings.Lines(page) {
		if rest, found := strings.CutPrefix(line, name); found && rest != "" && (rest[0] == '{' || rest[0] == ' ') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
			if err == nil {
				sum, ok = sum+v, true
			}
		}
	}
	return sum, ok
}

// busy are the metrics of an engine that are 0 when it has no work and no request holds blocks.
var busy = [...]string{"vllm:num_requests_running", "vllm:num_requests_waiting", "cascade_emulator_frozen_requests", "cascade_emulator_reserved_blocks"}

// awaitDrained waits until no request runs at a replica, as the control plane sees it.
func (f *fleet) awaitDrained(id string) {
	f.T.Helper()
	f.AwaitStatus(id+" is empty", func(s control.Status) bool { n := harness.Find(s, id); return n.ID != "" && n.Residents == 0 })
}

// newLoad starts a load; its prompts have the given sizes, and its answers output tokens. Most requests are streamed.
func (f *fleet) newLoad(workers, output int, sizes ...int) *harness.Load {
	f.T.Helper()
	return f.NewLoad(harness.LoadConfig{
		Workers: workers,
		Body: func(worker int, rng *rand.Rand) []byte {
			return harness.Prompt(1+worker, sizes[rng.IntN(len(sizes))], output)
		},
		Streamed: func(n int) bool { return n%4 != 0 },
	})
}

// awaitEmpty waits until nothing is running, frozen or reserved at the engines.
func (f *fleet) awaitEmpty(replicas ...*replica) {
	f.T.Helper()
	for _, r := range replicas {
		f.WaitFor(r.ID+" is empty", func() bool {
			page, err := f.Get(r.Engine + "/metrics")
			for _, name := range busy {
				if v, ok := gauge(page, name); err != nil || !ok || v != 0 {
					return false
				}
			}
			return true
		})
	}
}
