package processes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/cmd/internal/loglimit"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	xdsfleet "github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// fewDescriptors is how many descriptors the migrator may open that the table lets run out of them.
const fewDescriptors = 256

// TestFaults injects every fault that an operator meets into a running fleet: "cascade status" and
// a metric name it, requests that have not begun are not lost, and both forget it once it is
// mended. "make faults" prints the table.
func TestFaults(t *testing.T) {
	t.Parallel()
	t.Run("proxy", func(t *testing.T) {
		t.Parallel()
		modules, key := newSigner(t)
		f := newFleet(t, setup{replicas: 3, planes: 2, log: []string{"--log", "info"}, limits: map[string]int{"r2": fewDescriptors}, files: map[string][]byte{"ops.pub": key}, edit: func(c *config.Fleet) {
			c.Proxy.Admin, c.Policies.Keys = testkit.Addresses(t, 1)[0], []string{"ops.pub"}
		}})
		f.runFaults(t, "proxy", f.replicaFaults, f.addressFaults, f.resourceFaults, f.planeFaults, f.startFaults, f.storeFaults, f.fileFaults, f.rolloutFaults,
			func(t *testing.T) []faultRow { return f.policyFaults(t, modules) }, f.limitFaults, f.loadFaults)
	})
	t.Run("certificates", func(t *testing.T) {
		t.Parallel()
		testkit.SkipSlow(t)
		f, authority := newCertificateFleet(t)
		f.runFaults(t, "proxy, mTLS", func(t *testing.T) []faultRow { return f.certificateFaults(t, authority) })
	})
	t.Run("envoy", func(t *testing.T) {
		t.Parallel()
		testkit.SkipSlow(t)
		envoytest.Binary(t)
		f := newFleet(t, setup{envoy: true, replicas: 3, planes: 2, log: []string{"--log", "info"}})
		f.runFaults(t, "envoy", f.replicaFaults, f.addressFaults)
	})
}

// newCertificateFleet runs a fleet whose components have certificates, and returns it with their authority.
func newCertificateFleet(t *testing.T) (*fleet, *devca.Authority) {
	files := identities(t, "--control", "a", "--control", "b", "--proxy", "edge", "--migrator", "r0", "--migrator", "r1")
	authority := testkit.Must(devca.Load(filepath.Dir(files.CA)))
	f := newFleet(t, setup{replicas: 2, planes: 2, log: []string{"--log", "info"}, edit: func(c *config.Fleet) { c.TLS = files }})
	return f, authority
}

// runFaults runs rows on a fleet, all of them or the quick ones, and logs the table.
func (f *fleet) runFaults(t *testing.T, dataPlane string, lists ...func(*testing.T) []faultRow) {
	for _, p := range f.planes {
		p.await("has reports and no fault", func(s control.Status) bool { return hasFreshReports(s) && len(s.Faults) == 0 })
	}
	table := newFaultTable(f, dataPlane)
	defer func() { t.Log("the table:\n" + faultTableHead + "\n" + strings.Join(table.lines, "\n")) }()
	for _, list := range lists {
		for _, r := range list(t) {
			if (everything || r.quick) && onlyFault.MatchString(r.name) {
				table.run(t, r)
			}
		}
	}
	table.load.Stop()
}

// onlyFault selects rows by name while one of them is worked on.
var onlyFault = regexp.MustCompile(os.Getenv("CASCADE_FAULT"))

// replicaFaults are those of engines and migrators.
func (f *fleet) replicaFaults(t *testing.T) []faultRow {
	r := f.replicas[0]
	replica := func(name, text string, inject func(), witness func() func() bool, heal func()) faultRow {
		return faultRow{name: name, inject: inject, witness: witness, kind: control.FaultReplica, object: r.ID, text: text, heal: heal}
	}
	unhealthy := f.planesLog("replica is unhealthy.*replica=r0")
	rows := []faultRow{
		replica("engine killed (SIGKILL)", "engine does not answer health checks",
			func() { r.engine.Kill() }, r.logs("engine stopped answering"), r.startEngine),
		replica("engine hangs: /health answers 200", "answers health checks and makes no progress",
			func() { f.postEngine(r, "/emulator/hang") }, r.logs("engine makes no progress"), func() { r.engine.Kill(); r.startEngine() }),
		replica("engine suspended (SIGSTOP)", "(engine does not answer health checks|makes no progress)",
			func() { r.engine.Signal(syscall.SIGSTOP) }, r.logs("engine (makes no progress|stopped answering)"), func() { r.engine.Signal(syscall.SIGCONT) }),
		replica("migrator suspended (SIGSTOP)", "stopped reporting; its report stream is open",
			func() { r.migrator.Signal(syscall.SIGSTOP) }, unhealthy, func() { r.migrator.Signal(syscall.SIGCONT) }),
		replica("migrator killed (SIGKILL)", "stopped reporting; its report stream is closed",
			func() { r.migrator.Kill() }, unhealthy, r.startMigrator),
		replica("migrator stopped (SIGTERM)", "stopped reporting; its report stream is closed",
			func() { r.migrator.Stop() }, f.planesLog("replica is draining.*replica=r0"), r.startMigrator),
		{
			name: "all engines killed", kind: control.FaultModel, object: llm, text: "no replica takes requests", notReady: true, down: true,
			inject: func() {
				for _, r := range f.replicas {
					r.engine.Kill()
				}
			},
			witness: logs("engine stopped answering", func() (list []*harness.Daemon) {
				for _, r := range f.replicas {
					list = append(list, r.migrator)
				}
				return list
			}),
			heal: func() {
				for _, r := range f.replicas {
					r.startEngine()
				}
			},
		},
	}
	rows[0].quick = true
	return rows
}

// postEngine sends a command to an emulated engine.
func (f *fleet) postEngine(r *replica, path string) {
	f.T.Helper()
	resp, err := f.HTTP.Post(r.Engine+path, "application/json", nil)
	testkit.NoError(f.T, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		f.T.Fatalf("POST %s: %s", path, resp.Status)
	}
}

// edited writes the fleet file with changes, and returns a function that restores it.
func (f *fleet) edited(name string, edit func(*config.Fleet)) (restore func()) {
	f.T.Helper()
	c := f.file
	c.Replicas = append([]config.Replica(nil), c.Replicas...)
	edit(&c)
	f.writeFleet(name, c)
	return func() { f.writeFleet(name, f.file) }
}

// addressFaults are those of what proxies see.
func (f *fleet) addressFaults(t *testing.T) []faultRow {
	var restore func()
	return []faultRow{{
		name: "wrong address of a replica in the fleet file", kind: control.FaultReplica, object: "r1", text: "every request that proxies sent to its address",
		inject: func() {
			restore = f.edited("fleet.yaml", func(c *config.Fleet) { c.Replicas[1].Address = testkit.Addresses(t, 1)[0] })
		},
		witness: f.planesLog("replica is unhealthy.*replica=r1"),
		heal:    func() { restore() },
	}}
}

// resourceFaults are those of a process that runs out of something.
func (f *fleet) resourceFaults(t *testing.T) []faultRow {
	var held []net.Conn
	before := 0 // length of the migrator's log
	r2, r1 := f.replicas[2], f.replicas[1]
	return []faultRow{
		{
			name: "file descriptors of a migrator run out", kind: "descriptors", object: "migrator r2", text: "few file descriptors are left", quick: true,
			inject: func() {
				before = len(r2.migrator.Log.String())
				for range 2 * fewDescriptors {
					c, err := net.Dial("tcp", r2.Address)
					testkit.NoError(t, err)
					held = append(held, c)
				}
			},
			witness: r2.logs("connection closed: few file descriptors are left"),
			heal: func() {
				for _, c := range held {
					c.Close()
				}
				text := r2.migrator.Log.String()[before:]
				for _, wrong := range []string{"engine stopped answering", "lost its engine", "too many open files"} {
					if strings.Contains(text, wrong) {
						t.Errorf("%q was logged", wrong)
					}
				}
				if n := strings.Count(text, "connection closed"); n > loglimit.PerSubject+1 {
					t.Errorf("closed connections are logged %d times", n)
				}
			},
		},
		{
			name: "memory of a migrator runs out", kind: "memory", object: "migrator r1", text: "little memory is left",
			inject:  func() { r1.env = []string{"GOMEMLIMIT=4MiB"}; r1.startMigrator() },
			witness: r1.logs("new requests are refused"),
			heal:    func() { r1.env = nil; r1.startMigrator() },
		},
	}
}

// certificateFaults are those of certificates.
func (f *fleet) certificateFaults(t *testing.T, authority *devca.Authority) []faultRow {
	dir := filepath.Dir(f.file.TLS.CA)
	issue := func(from *devca.Authority, role identity.Role, name string, age time.Duration) func() {
		return func() {
			id := identity.ID{TrustDomain: "fleet.test", Role: role, Name: name}
			testkit.NoError(t, from.Issue(filepath.Join(dir, string(role), name), id, nil, time.Now().Add(-age)))
		}
	}
	const nearEnd = devca.LeafLifetime - time.Hour
	r1 := f.replicas[1]
	restart := func() { r1.migrator.Kill(); r1.startMigrator() }
	stranger := testkit.Must(devca.New("fleet.test", time.Now()))
	return []faultRow{
		{
			name: "certificate of a migrator expires within the hour", kind: "certificate", object: "migrator r0", text: "migrator/r0.*expires at",
			inject: issue(authority, identity.Migrator, "r0", nearEnd), witness: f.replicas[0].logs("certificate expires soon"), heal: issue(authority, identity.Migrator, "r0", 0),
		},
		{
			name: "certificate of a proxy expires within the hour", kind: "certificate", object: "proxy edge", text: "proxy/edge.*expires at",
			inject:  issue(authority, identity.Proxy, "edge", nearEnd),
			witness: logs("certificate expires soon", func() []*harness.Daemon { return []*harness.Daemon{f.proxy} }), heal: issue(authority, identity.Proxy, "edge", 0),
		},
		{
			name: "certificate of a control plane expires within the hour", kind: "certificate", object: "control b", text: "control/b.*expires at",
			inject: issue(authority, identity.Control, "b", nearEnd), witness: f.planesLog("certificate expires soon"), heal: issue(authority, identity.Control, "b", 0),
		},
		{
			name: "certificate of a migrator from a wrong CA", kind: control.FaultClients, object: "certificates", text: "migrator/r1",
			inject:  func() { issue(stranger, identity.Migrator, "r1", 0)(); restart() },
			witness: f.planesLog("client refused: its certificate does not match"),
			heal:    func() { issue(authority, identity.Migrator, "r1", 0)(); restart() },
		},
	}
}

// startFaults are those with which no control plane starts.
func (f *fleet) startFaults(t *testing.T) []faultRow {
	a, b := f.planes[0], f.planes[1]
	plan := f.path("state/plan.json")
	row := func(name, says string, spoil func(good string) string) faultRow {
		var good []byte
		return faultRow{
			name: name, text: "the control plane ends: …" + says, object: "cascade_proxy_control_plane_connected 0",
			inject: func() {
				a.process.Kill()
				b.process.Kill()
				good = testkit.Must(os.ReadFile(plan))
				testkit.NoError(t, os.WriteFile(plan, []byte(spoil(string(good))), 0o644))
				a.launch()
			},
			named: func() (bool, bool) {
				page, err := f.Get("http://" + f.file.Proxy.Admin + "/metrics")
				return !a.process.Running() && strings.Contains(a.process.Log.String(), says), err == nil && strings.Contains(page, "cascade_proxy_control_plane_connected 0")
			},
			heal: func() {
				if strings.Contains(says, "repair") {
					command(t, "plan", "repair", "-c", f.path("fleet.yaml"))
				} else {
					testkit.NoError(t, os.WriteFile(plan, good, 0o644))
				}
				a.start()
				b.start()
			},
		}
	}
	return []faultRow{
		row("plan.json is corrupt when all control planes start", `rebuild it with "cascade plan repair"`, func(good string) string { return good[:len(good)/2] }),
		row("plan.json is of a future version when all control planes start", "start a version that reads it", func(good string) string { return strings.Replace(good, `"format": 2`, `"format": 99`, 1) }),
	}
}

// limitFaults are those of clients beyond a limit.
func (f *fleet) limitFaults(t *testing.T) []faultRow {
	stop := func() {}
	return []faultRow{{
		name: "a client exceeds control.limits", kind: control.FaultClients, object: "limits", text: "edge-9",
		inject: func() {
			conn := testkit.Must(grpc.NewClient(f.planes[0].listen, grpc.WithTransportCredentials(insecure.NewCredentials())))
			stop = func() { conn.Close() }
			stream := testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context()))
			names := make([]string, 17_000)
			for i := range names {
				names[i] = fmt.Sprint("nothing/", i)
			}
			_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "edge-9"}, TypeUrl: resources.EndpointType, ResourceNamesSubscribe: names})
			if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a client beyond the limit: %v", err)
			}
		},
		witness: f.planesLog("xds stream refused"),
		heal:    func() { stop() },
	}}
}

// loadFaults are those of clients that send too much.
func (f *fleet) loadFaults(t *testing.T) []faultRow {
	const clients = 200
	stop := func() {}
	return []faultRow{{
		name: "more requests than the replicas serve", kind: control.FaultOverload, object: llm, text: "requests/s are refused with 429.*or send less", down: true, quick: true,
		inject: func() {
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range clients {
				wg.Go(func() { f.sendAgain(ctx, harness.Prompt(100+i, 40_000, 500)) })
			}
			stop = func() { cancel(); wg.Wait() }
		},
		heal: func() { stop() },
	}}
}

// sendAgain sends a request until ctx ends, a second after each answer.
func (f *fleet) sendAgain(ctx context.Context, body []byte) {
	for ctx.Err() == nil {
		req := testkit.Must(http.NewRequestWithContext(ctx, http.MethodPost, f.DataPlane+"/v1/completions", bytes.NewReader(body)))
		if resp, err := f.HTTP.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// planeFaults are those of control planes.
func (f *fleet) planeFaults(t *testing.T) []faultRow {
	a, b := f.planes[0], f.planes[1]
	proxyMetrics := "http://" + f.file.Proxy.Admin + "/metrics"
	leader, other := a, b
	choose := func() {
		if s, err := b.status(); err == nil && s.Planner.Leads {
			leader, other = b, a
		} else {
			leader, other = a, b
		}
	}
	choose()
	return []faultRow{
		{
			name: "leading control plane killed", kind: control.FaultPlane, object: leader.name, text: "has written no note", ask: other,
			inject: func() { leader.process.Kill() }, witness: f.planesLog("became the leader after another"), heal: leader.start,
		},
		{
			name: "following control plane suspended", kind: control.FaultPlane, object: leader.name, text: "has written no note", ask: other,
			inject: func() { leader.freeze() }, heal: func() { leader.process.Signal(syscall.SIGCONT) },
		},
		{
			name: "all control planes killed", kind: "", object: "cascade_proxy_control_plane_connected 0", text: "exit 1: no control plane answers",
			inject:  func() { a.process.Kill(); b.process.Kill() },
			witness: logs("control plane unreachable", func() []*harness.Daemon { return []*harness.Daemon{f.proxy} }),
			named: func() (bool, bool) {
				_, code := commandCode("status", "--control", "http://"+a.admin+",http://"+b.admin)
				page, err := f.Get(proxyMetrics)
				return code == 1, err == nil && strings.Contains(page, "cascade_proxy_control_plane_connected 0")
			},
			heal: func() { a.start(); b.start() },
		},
	}
}

// storeFaults are those of the state directory.
func (f *fleet) storeFaults(t *testing.T) []faultRow {
	plan, lock, notes := f.path("state/plan.json"), f.path("state/plan.json.lock"), f.path("state/notes")
	var kept []byte
	keep := func() { kept = testkit.Must(os.ReadFile(plan)) }
	replace := func(text []byte) {
		testkit.NoError(t, os.WriteFile(plan+".new", text, 0o644))
		testkit.NoError(t, os.Rename(plan+".new", plan))
	}
	store := func(operation, name, text string, inject, heal func()) faultRow {
		return faultRow{name: name, kind: control.FaultStore, object: operation, text: text, inject: inject, heal: heal, notReady: operation != "notes"}
	}
	hang := func(path string) func() {
		return func() {
			testkit.NoError(t, syscall.Mkfifo(path+".new", 0o600))
			testkit.NoError(t, os.Rename(path+".new", path))
		}
	}
	// unblock ends the reads of a pipe that was in the way.
	unblock := func(path string) {
		p, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
		testkit.NoError(t, err)
		testkit.NoError(t, os.Remove(path))
		p.Close()
	}
	rows := []faultRow{
		store("write", "plan store cannot be written", "plan not stored", func() {
			testkit.NoError(t, os.Rename(lock, lock+".old"))
			testkit.NoError(t, os.Mkdir(lock, 0o700))
		}, func() {
			testkit.NoError(t, os.Remove(lock))
			testkit.NoError(t, os.Rename(lock+".old", lock))
		}),
		store("read", "plan store cannot be read", "stored plan cannot be read", func() {
			testkit.NoError(t, os.Rename(f.path("state"), f.path("away")))
		}, func() { testkit.NoError(t, os.Rename(f.path("away"), f.path("state"))) }),
		store("read", "plan.json is corrupt", "stored plan cannot be read", func() { keep(); replace(kept[:len(kept)/2]) }, func() { replace(kept) }),
		store("read", "plan.json is of a future version", "stored plan cannot be read.*another version", func() {
			keep()
			replace([]byte(strings.Replace(string(kept), `"format": 2`, `"format": 99`, 1)))
		}, func() { replace(kept) }),
		store("read", "plan store hangs", "has not answered", func() { keep(); hang(plan)() }, func() {
			p, err := os.OpenFile(plan, os.O_RDWR|syscall.O_NONBLOCK, 0)
			testkit.NoError(t, err)
			replace(kept)
			p.Close()
		}),
		store("notes", "directory of notes hangs", "has not answered", hang(notes+"/hung"), func() { unblock(notes + "/hung") }),
	}
	rows[0].quick, rows[2].quick = true, true
	for i := range rows {
		rows[i].witness = f.planesLog("(plan not stored|stored plan cannot be read|cannot exchange notes)")
	}
	return rows
}

// fileFaults are those of the fleet file.
func (f *fleet) fileFaults(t *testing.T) []faultRow {
	b := f.planes[1]
	var restore func()
	edit := func(name string, change func(*config.Fleet)) func() {
		return func() { restore = f.edited(name, change) }
	}
	two := func(c *config.Fleet) { c.Replicas = c.Replicas[:1] }
	mend := func() { restore() }
	restart := func(file string) {
		b.process.Stop()
		b.file = file
		b.launch()
	}
	return []faultRow{
		{
			name: "fleet file is invalid", kind: control.FaultFile, object: "refused", text: "the last valid fleet file stays in force", quick: true,
			inject: func() { f.write("fleet.yaml", []byte("models: [\n")) }, witness: f.planesLog("fleet file rejected"), heal: func() { f.writeFleet("fleet.yaml", f.file) },
		},
		{
			name: "fleet file has a change that only a restart applies", kind: control.FaultFile, object: "restart", text: "planner.period; restart the control planes",
			inject: edit("fleet.yaml", func(c *config.Fleet) { c.Planner.Period = time.Hour / 2 }), witness: f.planesLog("changes that need a restart"), heal: mend,
		},
		{
			name: "fleet file removes two of three replicas", kind: control.FaultRemoval, object: f.removalDigest(1), text: "removes 2 of the 3 replicas of m", quick: true,
			inject: edit("fleet.yaml", two), witness: f.planesLog("fleet file not applied"), heal: mend,
		},
		{
			name: "control plane started with two of three replicas cut off", kind: control.FaultRemoval, object: f.removalDigest(1), text: "removes 2 of the 3 replicas of m", ask: b, notReady: true,
			inject: func() {
				f.edited("cut.yaml", two)
				restart("cut.yaml")
			},
			heal: func() { restart("fleet.yaml") },
		},
		{
			name: "control planes with different fleet files", kind: control.FaultFileDiffers, object: "b", text: "another fleet file in force, with 2 replicas; these fields differ: replicas",
			inject: func() {
				f.edited("other.yaml", func(c *config.Fleet) { c.Replicas = c.Replicas[:2] })
				restart("other.yaml")
			},
			heal: func() { restart("fleet.yaml") },
		},
	}
}

// rolloutFaults are those of proxies that refuse what they are sent.
func (f *fleet) rolloutFaults(t *testing.T) []faultRow {
	var node *refuser
	connect := func(id string) {
		node = startRefuser(t, f.planes[0].listen, id)
		f.planes[0].await(id+" is current", func(s control.Status) bool {
			return slices.ContainsFunc(s.Nodes, func(n control.Node) bool { return n.ID == id && n.Current })
		})
	}
	return []faultRow{
		{
			name: "a proxy refuses what the others run", kind: control.FaultRollout, object: "edge-2", text: "has accepted no configuration.*refused by the test",
			inject: func() {
				node = startRefuser(t, f.planes[0].listen, "edge-2")
				node.refusing.Store(true)
			},
			witness: f.planesLog("node refused a response"), heal: func() { node.stop() },
		},
		{
			name: "a proxy refuses a new plan", kind: control.FaultRollout, object: "plan", text: "refused by the test",
			inject: func() {
				connect("edge-3")
				node.refusing.Store(true)
				f.planes[0].cascade("drain", "r2")
			},
			witness: f.planesLog("node refused a response"),
			heal: func() {
				node.stop()
				f.planes[0].cascade("drain", "--undo", "r2")
			},
		},
	}
}

// removalDigest returns the digest of the first n replicas as a control plane knows them.
func (f *fleet) removalDigest(n int) string {
	f.T.Helper()
	f.edited("first.yaml", func(c *config.Fleet) { c.Replicas = c.Replicas[:n] })
	file, err := wiring.Load(f.path("first.yaml"))
	testkit.NoError(f.T, err)
	return xdsfleet.DigestReplicas(file.Registry())
}
