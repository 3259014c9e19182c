package control

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/store"
)

// startPlanes returns a function that starts a control plane of a fleet with several.
func startPlanes(t *testing.T, cfg Config) func(name string) *runningControl {
	return func(name string) *runningControl {
		t.Helper()
		cfg.Rules.Name, cfg.Rules.Shared = name, true
		return startControl(t, cfg)
	}
}

// TestEnvoyTwoControlPlanes checks that an Envoy whose control plane stops
// connects to the other one on the same store, is sent nothing that it has, and
// follows it. No request fails, and the other control plane plans.
func TestEnvoyTwoControlPlanes(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	list := startUpstreams(t, 4)
	for i := range list {
		list[i].Capacity.Batch = 4096 // so large that the few requests here change no weight
	}
	st := store.New(store.NewMemory())
	run := startPlanes(t, Config{Rules: rulesWithoutReports(), Replicas: list, Store: st})
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
	testkit.NoError(t, b.fleet.Order(t.Context(), fleetstate.Drain{Replica: "r0"}))
	waitForEpoch(t, b, 2)

	// The first one restarts and follows.
	a = run("a")
	waitFor(t, a, "a follows b", func(s Status) bool { return s.Epoch == 2 && s.Planner.Holder == "b" && !s.Planner.Leads })
	load.stop()
	if load.failed.Load() > 0 || load.done.Load() == 0 {
		t.Errorf("%d of %d requests failed; the first: %v", load.failed.Load(), load.done.Load(), load.first)
	}
}

// TestRefusedPlanIsReplaced checks that a plan which a proxy of one control plane refuses is rolled
// back in the store: all control planes, and one that starts later, get the plan before it under a
// new epoch, and no proxy is sent the refused one again.
func TestRefusedPlanIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFakeFleet(t, 2)
	st := store.New(store.NewMemory())
	run := startPlanes(t, Config{Rules: rulesWithoutReports(), Replicas: f.list, Store: st, Audit: newAudit(t)})
	a := run("a")
	waitFor(t, a, "the first plan", func(s Status) bool { return s.Planner.Leads && s.PublishedEpoch == 1 })
	b := run("b")
	ads := openDelta(t, b).stream
	testkit.NoError(t, ads.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "edge"}, TypeUrl: resources.RoutingType, ResourceNamesSubscribe: []string{resources.RoutingName("")},
	}))
	var taken, refusals atomic.Int64
	go func() {
		for {
			r, err := ads.Recv()
			if err != nil {
				return
			}
			reply := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
			for _, res := range r.GetResources() {
				if epoch := resources.RoutingEpoch(res.GetResource().GetValue()); epoch == 2 {
					refusals.Add(1)
					reply.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "two stages are too many"}
				} else {
					taken.Store(int64(epoch))
				}
			}
			if ads.Send(reply) != nil {
				return
			}
		}
	}()
	testkit.WaitFor(t, "the first plan at the proxy", func() bool { return taken.Load() == 1 })

	testkit.WaitFor(t, "a second plan in the store", func() bool {
		u := storedUpdate(t, st)
		o := u.Object
		before := o.Plans[0]
		next := policies.Plan{Model: "m", Epoch: 2, Stages: []policies.Stage{
			{High: 1000, Replicas: before.Stages[0].Replicas[:1]}, {Low: 1000, High: policies.Unbounded, Replicas: before.Stages[0].Replicas[1:]},
		}}
		o.FormerPlans = fleetstate.AppendFormer(o.FormerPlans, before, next.Stages)
		o.Epoch, o.Plans = 2, []policies.Plan{next}
		_, err := st.CompareAndSwap(t.Context(), u.Version, o)
		return err == nil
	})
	back := func(s Status) bool {
		h := s.History
		return s.PublishedEpoch == 3 && s.Error == "" && len(s.Models[0].Stages) == 1 && len(h) > 0 &&
			strings.HasPrefix(h[len(h)-1].Reason, "rolled back to the plan of epoch 1: edge refused ") && strings.HasSuffix(h[len(h)-1].Reason, ": two stages are too many")
	}
	waitFor(t, a, "the plan before", back)
	waitFor(t, b, "the plan before", back)
	testkit.WaitFor(t, "the plan before at the proxy", func() bool { return taken.Load() == 3 })
	waitFor(t, run("c"), "the plan before", back)
	if n := refusals.Load(); n != 1 {
		t.Errorf("the proxy was sent the refused plan %d times", n)
	}
	if s := b.Status(); len(s.Refused) != 1 || s.Refused[0].Epoch != 2 || s.Refused[0].Text != "two stages are too many" || !hasFault(s, FaultRollout, "plan") {
		t.Errorf("refused: %+v, faults %+v", s.Refused, s.Faults)
	}
	requireAudited(t, b, "configuration | "+resources.RoutingName("")+" | refused | two stages are too many | edge |  | false")
}

// storedUpdate returns the stored object with its version.
func storedUpdate(t *testing.T, st *store.Store) store.Update {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	updates := st.Watch(ctx)
	u := <-updates
	cancel()
	for range updates {
	}
	return u
}

// TestPlanesCompare checks that control planes of one store show each other's proxies and fleet
// files, a file that is refused, and one that has died; and that each names it in a metric.
func TestPlanesCompare(t *testing.T) {
	t.Parallel()
	f := newFakeFleet(t, 2)
	st := store.New(store.NewMemory())
	run := startPlanes(t, Config{Rules: rulesWithoutReports(), Replicas: f.list, Store: st})
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
		return hasFault(s, FaultFile, "restart", "only a restart applies: proxy.listen, speed; restart the control planes")
	})
	requireNamed(t, b, FaultFile, "restart", true)
	a.SetFleetFile(FleetFile{Digest: "another", Fields: map[string]string{"replicas": "2", "planner.period": "4", "proxy.nodes": "5"}}, nil)
	waitFor(t, b, "a's other file", func(s Status) bool {
		return hasFault(s, FaultFileDiffers, "a", "; these fields differ: planner.period, proxy.nodes, speed: give all") && !hasFault(s, FaultFile, "a")
	})
	requireNamed(t, b, FaultFileDiffers, "a", true)

	note := testkit.Must(json.Marshal(planeNote{Name: "c", FleetDigest: "x"}))
	testkit.NoError(t, st.PutNote(t.Context(), "c", note)) // a plane that then dies
	waitFor(t, b, "c is dead", func(s Status) bool { return hasFault(s, FaultPlane, "c") })
	a.stop()
	waitFor(t, b, "a has stopped", func(s Status) bool {
		return !slices.ContainsFunc(s.Planes, func(p Plane) bool { return p.Name == "a" })
	})
}
