package control

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestPolicyBlockedByGates checks that results in shadow keep a module from
// being promoted, except by a goal without gates.
func TestPolicyBlockedByGates(t *testing.T) {
	f := newFakeFleet(t, 1)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Admitter: new(fakeAdmitter)})
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch == 1 })
	h := startHost(t, f.replicas[0], c)
	module := []byte("module 1")
	requireOK(t)(push(t, c, "slot=bid-select&goal=shadow", module, "generation 1"))
	h.waitFor(t, c, "1 on trial", wantsGenerations(1))
	h.mu.Lock()
	h.status.Modules[0].Phase, h.status.Modules[0].Blocked = "shadow", "9 of 64 answers worse"
	h.report()
	h.mu.Unlock()
	waitForPolicies(t, c, "it is blocked", func(p Policies) bool {
		return len(p.Slots) == 1 && len(p.Slots[0].Nodes) == 1 && len(p.Slots[0].Nodes[0].Modules) == 1 && p.Slots[0].Nodes[0].Modules[0].Blocked != ""
	})
	for _, goal := range []string{"canary&permille=10", "active"} {
		code, text := post(t, c, "/policies/goal?slot=bid-select&goal="+goal, nil)
		if code != http.StatusUnprocessableEntity || !strings.Contains(text, "9 of 64 answers worse") || !strings.Contains(text, "--to stable") {
			t.Errorf("to %s: %d %s", goal, code, text)
		}
		if code, text := push(t, c, "slot=bid-select&goal="+goal, module, "generation 1"); code != http.StatusUnprocessableEntity {
			t.Errorf("pushed to %s: %d %s", goal, code, text)
		}
	}
	if p := c.Policies(slotKind); p.Slots[0].Candidate == nil || p.Slots[0].Candidate.Goal != lifecycle.ToShadow {
		t.Errorf("goal changed: %+v", p.Slots[0])
	}
	requireOK(t)(post(t, c, "/policies/goal?slot=bid-select&goal=stable", nil))
}

// TestPolicyRejectedEverywhere checks that a module which every host has rejected is promoted to nothing, and that
// a rejection is a fault until the generation is rolled back.
func TestPolicyRejectedEverywhere(t *testing.T) {
	f := newFakeFleet(t, 2)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Admitter: new(fakeAdmitter)})
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch == 1 })
	hosts := []*testHost{startHost(t, f.replicas[0], c), startHost(t, f.replicas[1], c)}
	requireOK(t)(push(t, c, "slot=bid-select&goal=shadow", []byte("module 1"), "generation 1"))
	phase := func(h *testHost, phase string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.status.Modules[0].Phase, h.status.Modules[0].Reason = phase, map[string]string{"rejected": "needs too much memory"}[phase]
		h.report()
	}
	for _, h := range hosts {
		h.waitFor(t, c, "1 on trial", wantsGenerations(1))
		phase(h, "rejected")
	}
	waitFor(t, c, "the fault of both", func(s Status) bool {
		return hasFault(s, FaultPolicy, slotKind, "generation 1: r0: needs too much memory; 1 other host reports the same; push another one")
	})
	requireNamed(t, c, FaultPolicy, slotKind, true)
	for _, goal := range []string{"shadow", "canary&permille=10", "active", "stable"} {
		if code, text := post(t, c, "/policies/goal?slot=bid-select&goal="+goal, nil); code != http.StatusUnprocessableEntity || !strings.Contains(text, "every host has rejected generation 1: r0: needs too much memory") {
			t.Errorf("to %s: %d %s", goal, code, text)
		}
	}
	phase(hosts[1], "shadow")
	waitForPolicies(t, c, "a host that tries it", func(p Policies) bool { return p.Slots[0].Nodes[1].Modules[0].Phase == lifecycle.Shadow })
	hosts[0].mu.Lock()
	hosts[0].reject, hosts[0].rejectIn = 1, "warm" // before the goal: when both have it active, it is stable
	hosts[0].mu.Unlock()
	requireOK(t)(post(t, c, "/policies/goal?slot=bid-select&goal=active", nil))
	waitFor(t, c, "the fault of one", func(s Status) bool { return hasFault(s, FaultPolicy, slotKind) })
	requireOK(t)(post(t, c, "/policies/rollback?slot=bid-select", nil))
	waitFor(t, c, "no fault", func(s Status) bool { return len(s.Faults) == 0 })
}

// TestPolicies drives a slot through its states with two control planes on one store
// and a folder of modules. A module is pushed at one, runs on the hosts of both, and
// becomes stable. The next one fails on a host and is rolled back in the fleet. The one
// after is rolled back by an operator at the other control plane. A restarted host gets
// the stable one.
func TestPolicies(t *testing.T) {
	f := newFakeFleet(t, 3)
	dir := filepath.Join(t.TempDir(), "state")
	run := func(name string) *runningControl {
		r := fastRules()
		r.Name, r.Shared = name, true
		return startControl(t, Config{Rules: r, Replicas: f.list, Store: store.New(testkit.Must(store.NewFile(dir))), Admitter: new(fakeAdmitter)})
	}
	a := run("a")
	waitFor(t, a, "a plans", func(s Status) bool { return s.Planner.Leads })
	b := run("b")
	hosts := []*testHost{startHost(t, f.replicas[0], a, b), startHost(t, f.replicas[1], b, a), startHost(t, f.replicas[2], b, a)}
	all := func(c *runningControl, what string, fits func(lifecycle.SlotSpec) bool) {
		t.Helper()
		for _, h := range hosts {
			h.waitFor(t, c, what, fits)
		}
	}

	big := bytes.Repeat([]byte("module 1 "), 2<<20/9)
	p := requireOK(t)(push(t, b, "slot=bid-select&goal=shadow&by=ann", big, "generation 1"))
	if !hasGenerations(0, 1)(p) || p.Slots[0].Candidate.By != "ann" || p.Slots[0].Candidate.Size != len(big) || !p.Enabled {
		t.Fatalf("%+v", p)
	}
	all(b, "1 on trial", wantsGenerations(1))
	sum := lifecycle.Digest(sha256.Sum256(big))
	for _, h := range hosts {
		h.mu.Lock()
		one := h.want.Candidates[0]
		h.mu.Unlock()
		if one.Module != nil || one.SHA256 != sum {
			t.Fatalf("%s: module of 2 MB in the slot itself", h.ID)
		}
		if got, err := h.fetch(t, sum); err != nil || !bytes.Equal(got, big) {
			t.Fatalf("%s fetched %d bytes: %v", h.ID, len(got), err)
		}
	}
	for want, sum := range map[codes.Code][]byte{codes.NotFound: make([]byte, 32), codes.InvalidArgument: []byte("short")} {
		stream, err := api.NewModulesClient(hosts[0].connection).Fetch(t.Context(), &api.FetchRequest{Sha256: sum})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != want {
			t.Errorf("%x: %v", sum, err)
		}
	}

	// The goal is raised at the other one. All hosts run it: it is stable.
	requireOK(t)(post(t, a, "/policies/goal?slot=bid-select&goal=active&generation=1", nil))
	for _, c := range []*runningControl{a, b} {
		waitForPolicies(t, c, "1 is stable", hasGenerations(1, 0))
	}
	all(b, "1 stable", func(w lifecycle.SlotSpec) bool { return wantsGenerations(1)(w) && w.Candidates[0].Stable })

	// The next module is small, so it is in the slot itself, and traps on one
	// host.
	hosts[2].mu.Lock()
	hosts[2].reject = 2
	hosts[2].mu.Unlock()
	requireOK(t)(push(t, a, "slot=bid-select&goal=canary&permille=10", []byte("module 2"), "generation 2"))
	for _, c := range []*runningControl{a, b} {
		p := waitForPolicies(t, c, "2 is taken back", func(p Policies) bool { return hasGenerations(1, 0)(p) && len(p.Slots[0].RolledBack) == 1 })
		if e := p.Slots[0].RolledBack[0]; e.Generation != 2 || e.Reason != "r2: it trapped" || e.By != "a" {
			t.Errorf("%+v", e)
		}
	}
	all(b, "2 gone", func(w lifecycle.SlotSpec) bool {
		return wantsGenerations(1)(w) && len(w.RolledBack) == 1 && w.RolledBack[0].Generation == 2
	})

	// An operator pushes the third one without gates, and rolls it back.
	requireOK(t)(push(t, b, "slot=bid-select&goal=stable", []byte("module 3"), "generation 3"))
	all(b, "3 stable", func(w lifecycle.SlotSpec) bool {
		return wantsGenerations(3)(w) && string(w.Candidates[0].Module) == "module 3"
	})
	requireOK(t)(post(t, a, "/policies/rollback?slot=bid-select&reason=slow&by=bob", nil))
	all(b, "back to 1", func(w lifecycle.SlotSpec) bool { return wantsGenerations(1)(w) && len(w.RolledBack) == 2 })
	if s := waitFor(t, b, "the status", func(s Status) bool {
		return len(s.Policies) == 1 && s.Policies[0].Nodes == 3 && s.Policies[0].OnStable == 3
	}); s.Policies[0].Stable.Generation != 1 {
		t.Errorf("%+v", s.Policies)
	}

	// A host that restarts begins with the stable generation. It can fetch the module
	// even if no control plane is left that received the push.
	a.stop()
	hosts[1].stop()
	again := startHost(t, f.replicas[1], b)
	again.waitFor(t, b, "1 after a start", func(w lifecycle.SlotSpec) bool { return wantsGenerations(1)(w) && w.Candidates[0].Stable })
	if got, err := again.fetch(t, sum); err != nil || len(got) != len(big) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for _, want := range []string{
		`cascade_policy_slot_generation{node="r2",slot="bid-select",state="active"} 1`,
		`cascade_policy_calls_total{generation="1",node="r1",slot="bid-select"} 10`,
		`cascade_policy_faults_total{generation="1",node="r1",slot="bid-select"} 0`,
	} {
		testkit.WaitFor(t, want, func() bool { _, metrics := get(t, b, "/metrics"); return strings.Contains(metrics, want) })
	}
}

// TestPolicyRefused checks that a host which refuses a slot is shown with its
// reason and sent nothing again; the other hosts continue, and plans are
// rolled out.
func TestPolicyRefused(t *testing.T) {
	f := newFakeFleet(t, 2)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Admitter: new(fakeAdmitter), Audit: newAudit(t)})
	good, bad := startHost(t, f.replicas[0], c), startHost(t, f.replicas[1], c)
	bad.mu.Lock()
	bad.refuse = "key ops is not known here"
	bad.mu.Unlock()
	newProxy(t, c)
	requireOK(t)(push(t, c, "slot=bid-select&goal=active", []byte("module"), "generation 1"))
	good.waitFor(t, c, "1 on trial", wantsGenerations(1))
	p := waitForPolicies(t, c, "a refusal and a host that is active", func(p Policies) bool {
		n := p.Slots[0].Nodes
		return len(n) == 2 && n[0].Active == 1 && n[1].Refused != ""
	})
	if n := p.Slots[0].Nodes[1]; n.Node != "r1" || n.Refused != "key ops is not known here" || !hasGenerations(0, 1)(p) {
		t.Errorf("%+v", p.Slots[0])
	}
	waitFor(t, c, "a proxy that is current, and a summary", func(s Status) bool {
		return len(s.Nodes) == 1 && s.Nodes[0].Current && len(s.Refused) == 0 && len(s.Policies) == 1 && s.Policies[0].OnCandidate == 1
	})
	// Other changes do not send the same bytes again.
	testkit.NoError(t, c.fleet.Order(t.Context(), fleetstate.Drain{Replica: "r0"}))
	waitFor(t, c, "the drain reaches the proxy", func(s Status) bool { return s.Nodes[0].Current && s.Epoch > 1 && s.Phase == "idle" })
	requireOK(t)(post(t, c, "/policies/goal?slot=bid-select&goal=shadow", nil))
	good.waitFor(t, c, "the next goal", func(w lifecycle.SlotSpec) bool { return w.Candidates[0].Goal == lifecycle.ToShadow })
	waitForPolicies(t, c, "the second refusal", func(Policies) bool {
		bad.mu.Lock()
		defer bad.mu.Unlock()
		return bad.checks >= 2
	})
	requireAudited(t, c, "module | slot=bid-select host=r1 | refused | key ops is not known here | r1 |  | false")
	bad.stop()
	if bad.checks != 2 {
		t.Errorf("received %d configs, want 2", bad.checks)
	}
}

// TestPolicySilentNode checks that a proxy which subscribes to a slot and never
// replies to it delays no plan.
func TestPolicySilentNode(t *testing.T) {
	f := newFakeFleet(t, 2)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Admitter: new(fakeAdmitter)})
	newProxy(t, c)
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch == 1 && len(s.Nodes) == 1 && s.Nodes[0].Current })
	d := openDelta(t, c)
	d.send(t, &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "silent", Cluster: "cascade"}, TypeUrl: resources.ExtensionType,
		ResourceNamesSubscribe: []string{policyslots.ResourceName(slotKind)},
	})
	requireOK(t)(push(t, c, "slot=bid-select", []byte("module"), "generation 1"))
	for sent := false; !sent; {
		r, err := d.stream.Recv()
		testkit.NoError(t, err)
		if sent = len(r.GetResources()) == 1; !sent { // the subscription comes before the push
			d.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.ExtensionType, ResponseNonce: r.GetNonce()})
		}
	}
	testkit.NoError(t, c.fleet.Order(t.Context(), fleetstate.Drain{Replica: "r0"}))
	s := waitFor(t, c, "the plan at all groups", func(s Status) bool { return s.Epoch == 2 && s.PublishedEpoch == 2 && s.Phase == "idle" })
	for _, n := range s.Nodes {
		if n.Fenced {
			t.Errorf("%s is fenced: %s", n.ID, n.Reason)
		}
	}
}

// fakeSlots are the slots of a control plane, in which every configuration is
// active at once.
type fakeSlots struct {
	mu     sync.Mutex
	wanted []*api.SlotSpec
	refuse error
	reject lifecycle.Generation // this generation, after it was tried
}

func (o *fakeSlots) Apply(m *api.SlotSpec) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refuse != nil {
		return o.refuse
	}
	o.wanted = append(o.wanted, m)
	return nil
}

func (o *fakeSlots) Status() []*api.SlotStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &api.SlotStatus{Kind: "partition"}
	if n := len(o.wanted); n > 0 {
		for _, c := range o.wanted[n-1].GetCandidates() {
			if lifecycle.Generation(c.GetGeneration()) == o.reject {
				s.Modules = append(s.Modules, &api.ModuleStatus{Generation: uint64(o.reject), Phase: "rejected", Reached: "canary", Reason: "it trapped"})
				continue
			}
			s.Active = c.GetGeneration()
		}
	}
	return []*api.SlotStatus{s}
}

// TestEnvoyPolicies checks that policies which are pushed, fail and are rolled
// back change nothing in an Envoy, and that no request fails.
func TestEnvoyPolicies(t *testing.T) {
	envoytest.Binary(t)
	list := startUpstreams(t, 2)
	c := startControl(t, Config{Rules: rulesWithoutReports(), Replicas: list, Admitter: new(fakeAdmitter)})
	envoy, url := startEnvoy(t, c, "envoy")
	waitForEpoch(t, c, 1)
	load := startTraffic(t, url)
	// Endpoints may be sent again because weights follow the load.
	const counted = `(cluster_(added|modified|removed)|listener_(added|modified)|\.rds\..*config_reload|update_rejected|extension_config_discovery.*)$`
	before := envoy.Stats(counted)
	for g := range 10 {
		requireOK(t)(push(t, c, "slot=bid-select&slot=place&goal=stable", []byte("module"), fmt.Sprintf("generation %d", g+1)))
		if g%3 == 2 {
			requireOK(t)(post(t, c, "/policies/rollback?slot=bid-select&slot=place", nil))
		}
	}
	waitFor(t, c, "the slots", func(s Status) bool { return len(s.Policies) == 2 && s.Policies[0].Stable.Generation == 10 })
	waitForEpoch(t, c, 1)
	requireSameStats(t, envoy, counted, before, policies.MaxStages)
	load.stop()
	if load.failed.Load() > 0 || load.done.Load() == 0 {
		t.Errorf("%d of %d requests failed; the first: %v", load.failed.Load(), load.done.Load(), load.first)
	}
}
