package control

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestEnvoyTwoControlPlanes checks that an Envoy whose control plane stops
// connects to the other one on the same store, is sent nothing that it has, and
// follows it. No request fails, and the other control plane plans.
func TestEnvoyTwoControlPlanes(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	list, _ := startUpstreams(t, 4)
	for i := range list {
		list[i].Capacity.Batch = 4096 // so large that the few requests here change no weight
	}
	st := store.New(store.NewMemory())
	run := func(name string) *runningControl {
		r := rulesWithoutReports()
		r.Name, r.Shared = name, true
		return startControl(t, Config{Rules: r, Replicas: list, Store: st})
	}
	a := run("a")
	waitFor(t, a, "a plans", func(s Status) bool { return s.Planner.Leads })
	b := run("b")
	waitFor(t, b, "b follows a", func(s Status) bool { return s.Epoch == 1 && s.Planner.Holder == "a" && !s.Planner.Leads })
	envoy, url := startEnvoy(t, a, "envoy", b)
	waitForEpoch(t, a, 1)
	load := startTraffic(t, url)
	before := envoy.Stats(resourceStats)

	began := time.Now()
	a.stop()
	waitForEpoch(t, b, 1)
	t.Logf("Envoy connected to the other control plane after %v", time.Since(began))
	requireSameStats(t, envoy, resourceStats, before, policies.MaxStages+3)
	waitFor(t, b, "b plans", func(s Status) bool { return s.Planner.Leads })
	if err := b.fleet.Drain(t.Context(), "r0"); err != nil {
		t.Fatal(err)
	}
	waitForEpoch(t, b, 2)

	// The first one restarts and follows.
	a = run("a")
	waitFor(t, a, "a follows b", func(s Status) bool { return s.Epoch == 2 && s.Planner.Holder == "b" && !s.Planner.Leads })
	load.stop()
	if load.failed.Load() > 0 || load.done.Load() == 0 {
		t.Errorf("%d of %d requests failed; the first: %v", load.failed.Load(), load.done.Load(), load.first)
	}
}

// TestRefusalsReachAll checks that what a proxy refused is quarantined at every
// control plane of the store, and at one that starts later.
func TestRefusalsReachAll(t *testing.T) {
	f := newFakeFleet(t, 2)
	st := store.New(store.NewMemory())
	run := func(name string) *runningControl {
		r := fastRules()
		r.Name, r.Shared = name, true
		return startControl(t, Config{Rules: r, Replicas: f.list, Store: st, Audit: newAudit(t)})
	}
	a, b := run("a"), run("b")
	barred := func(c *runningControl) {
		t.Helper()
		testkit.WaitFor(t, "the refusal", func() bool {
			list := c.publisher.Quarantined()
			return len(list) == 1 && list[0].Version == "v1" && list[0].Node == "edge"
		})
	}
	b.storeRefusals([]publish.Refusal{{Type: resources.ClusterType, Name: "c", Version: "v1", Node: "edge", Text: "bad", At: time.Now()}})
	barred(a)
	barred(run("c"))
	requireAudited(t, b, "configuration | c | refused | bad | edge |  | false")
}

// TestPlanesCompare checks that control planes of one store show each other's proxies and fleet
// files, a file that is refused, and one that has died; and that each names it in a metric.
func TestPlanesCompare(t *testing.T) {
	t.Parallel()
	f := newFakeFleet(t, 2)
	st := store.New(store.NewMemory())
	run := func(name string) *runningControl {
		r := rulesWithoutReports()
		r.Name, r.Shared = name, true
		return startControl(t, Config{Rules: r, Replicas: f.list, Store: st})
	}
	a, b := run("a"), run("b")
	p := newProxy(t, a)
	p.waitFor(t, "a plan", func(s *routing.Snapshot) bool { return len(members(s, 0)) == 2 })
	waitFor(t, b, "the proxy of a, with the same file", func(s Status) bool {
		return len(s.Nodes) == 1 && s.Nodes[0].Connected && s.Nodes[0].Plane == "a" && len(s.Planes) == 1 && s.Planes[0].Name == "a" &&
			s.Planes[0].SameFile && s.Planes[0].Nodes == 1 && s.Planes[0].Admin == a.AdminAddr().String()
	})
	if s := b.Status(); hasFault(s, FaultFileDiffers, "a") || hasFault(s, FaultPlane, "a") {
		t.Errorf("%+v", s.Faults)
	}

	a.SetFleetFile(FleetFile{}, errors.New("fleet.yaml:3: bad"))
	waitFor(t, a, "its own refused file", func(s Status) bool { return hasFault(s, FaultFile, "refused") })
	requireNamed(t, a, FaultFile, "refused", true)
	waitFor(t, b, "a's refused file", func(s Status) bool { return hasFault(s, FaultFile, "a") })
	requireNamed(t, b, FaultFile, "a", true)
	b.SetFleetFile(FleetFile{Digest: "one", Fields: map[string]string{"speed": "1", "replicas": "2", "planner.period": "3"}, Restart: []string{"proxy.listen", "speed"}}, nil)
	waitFor(t, b, "changes that wait for a restart", func(s Status) bool {
		i := slices.IndexFunc(s.Faults, func(f Fault) bool { return f.Kind == FaultFile && f.Object == "restart" })
		return i >= 0 && strings.Contains(s.Faults[i].Text, "only a restart applies: proxy.listen, speed; restart the control planes")
	})
	requireNamed(t, b, FaultFile, "restart", true)
	a.SetFleetFile(FleetFile{Digest: "another", Fields: map[string]string{"replicas": "2", "planner.period": "4", "proxy.nodes": "5"}}, nil)
	waitFor(t, b, "the fields that differ", func(s Status) bool {
		i := slices.IndexFunc(s.Faults, func(f Fault) bool { return f.Kind == FaultFileDiffers })
		return i >= 0 && strings.Contains(s.Faults[i].Text, "; these fields differ: planner.period, proxy.nodes, speed: give all")
	})
	waitFor(t, b, "a's other file", func(s Status) bool { return hasFault(s, FaultFileDiffers, "a") && !hasFault(s, FaultFile, "a") })
	requireNamed(t, b, FaultFileDiffers, "a", true)

	note := testkit.Must(json.Marshal(planeNote{Name: "c", FleetDigest: "x"}))
	testkit.NoError(t, st.PutNote(t.Context(), "c", note)) // a plane that then dies
	waitFor(t, b, "c is dead", func(s Status) bool { return hasFault(s, FaultPlane, "c") })
	a.stop()
	waitFor(t, b, "a has stopped", func(s Status) bool {
		return !slices.ContainsFunc(s.Planes, func(p Plane) bool { return p.Name == "a" })
	})
}
