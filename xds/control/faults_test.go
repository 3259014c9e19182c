package control

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/store"
)

// hasFault reports whether a status lists a fault, with parts of its text.
func hasFault(s Status, kind, object string, texts ...string) bool {
	return slices.ContainsFunc(s.Faults, func(f Fault) bool {
		missing := func(text string) bool { return !strings.Contains(f.Text, text) }
		return f.Kind == kind && f.Object == object && f.Text != "" && !slices.ContainsFunc(texts, missing)
	})
}

// requireNamed checks that a fault is in the metrics, and that /readyz names it or is not
// concerned.
func requireNamed(t *testing.T, c *runningControl, kind, object string, ready bool) {
	t.Helper()
	requireMetrics(t, c, `cascade_fault{kind="`+kind+`",object="`+object+`"} 1`)
	code, body := get(t, c, "/readyz")
	if ready && code != http.StatusOK || !ready && (code != http.StatusServiceUnavailable || !strings.Contains(body, kind+" "+object+": ")) {
		t.Errorf("/readyz answers %d with the fault %s of %s: %s", code, kind, object, body)
	}
}

// TestRemovalFault checks that the fault of a fleet file that is not applied says by itself what the file removes.
func TestRemovalFault(t *testing.T) {
	const removes = "2 of the 3 replicas of m (r1, r2)"
	for _, atStart := range []bool{false, true} {
		held := &fleet.HeldRemoval{Digest: "d1", Text: removes, AtStart: atStart}
		got := fleetFaults(&fleet.Snapshot{Held: held}, nil, time.Now())
		if len(got) != 1 || got[0].Removes != removes || got[0].Object != "d1" || got[0].NotReady != atStart || !strings.Contains(got[0].Text, "removes "+removes+"; if") {
			t.Errorf("at the start %v: %+v", atStart, got)
		}
	}
}

// TestFaults checks that the status, a metric and /readyz name a replica that is unhealthy, a model
// without a replica, and a store that cannot be reached, and that orders then fail.
func TestFaults(t *testing.T) {
	f := newFakeFleet(t, 2)
	state := filepath.Join(t.TempDir(), "state")
	testkit.NoError(t, os.Mkdir(state, 0o700))
	file := store.New(testkit.Must(store.NewFile(state)))
	rules := fastRules()
	rules.Grace = 300 * time.Millisecond
	c := startControl(t, Config{Rules: rules, Replicas: f.list, Store: file})
	stop := f.startReports(t, c)
	waitFor(t, c, "no fault", func(s Status) bool { return s.Epoch > 0 && len(s.Faults) == 0 })
	testkit.WaitFor(t, "ready", func() bool { code, _ := get(t, c, "/readyz"); return code == http.StatusOK })

	f.replicas[1].setReport(func(m *api.LoadReport) { m.EngineReady = false })
	waitFor(t, c, "r1 named", func(s Status) bool { return hasFault(s, FaultReplica, "r1") })
	requireNamed(t, c, FaultReplica, "r1", true)
	requireMetrics(t, c, `cascade_replica_health{health="unhealthy",model="m",reason="engine_down",replica="r1"} 1`)
	f.replicas[1].setReport(func(m *api.LoadReport) { m.EngineHung = true })
	waitFor(t, c, "r1 hung", func(s Status) bool { return hasFault(s, FaultReplica, "r1", "makes no progress") })
	f.replicas[1].setReport(func(m *api.LoadReport) { m.EngineReady, m.EngineHung = true, false })
	waitFor(t, c, "r1 healthy", func(s Status) bool { return len(s.Faults) == 0 })

	testkit.NoError(t, os.Rename(state, state+".away"))
	waitFor(t, c, "the store named", func(s Status) bool { return hasFault(s, FaultStore, "read") })
	requireNamed(t, c, FaultStore, "read", false)
	if code, body := post(t, c, "/drain?replica=r1", nil); code != http.StatusServiceUnavailable {
		t.Errorf("an order without a store: %d %s", code, body)
	}
	waitFor(t, c, "the writes named", func(s Status) bool { return hasFault(s, FaultStore, "write") })
	f.replicas[1].setReport(func(m *api.LoadReport) { m.EngineReady = false })
	waitFor(t, c, "r1 unhealthy without a store", func(s Status) bool {
		i := slices.IndexFunc(s.Models[0].Stages[0].Replicas, func(r Replica) bool { return r.ID == "r1" })
		return i >= 0 && s.Models[0].Stages[0].Replicas[i].Health == "unhealthy"
	})
	testkit.NoError(t, os.Rename(state+".away", state))
	waitFor(t, c, "the store readable", func(s Status) bool { return !hasFault(s, FaultStore, "read") })
	if code, body := post(t, c, "/drain?replica=r1", nil); code != http.StatusOK {
		t.Errorf("an order with a store: %d %s", code, body)
	}
	waitFor(t, c, "the store writable", func(s Status) bool { return !hasFault(s, FaultStore, "write") })

	stop()
	waitFor(t, c, "the model named", func(s Status) bool { return hasFault(s, FaultModel, "m") })
	requireNamed(t, c, FaultModel, "m", false)
}

// TestFaultsOfHosts checks that the status and a metric name an engine that hangs, what a migrator
// lacks, and a module that a host refuses.
func TestFaultsOfHosts(t *testing.T) {
	f := newFakeFleet(t, 2)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list})
	f.startReports(t, c)
	waitFor(t, c, "no fault", func(s Status) bool { return s.Epoch > 0 && len(s.Faults) == 0 })
	testkit.WaitFor(t, "ready", func() bool { code, _ := get(t, c, "/readyz"); return code == http.StatusOK })
	f.replicas[0].setReport(func(m *api.LoadReport) { m.EngineReady, m.EngineHung = false, true })
	f.replicas[1].setReport(func(m *api.LoadReport) {
		m.Problems = []*api.Problem{{Kind: "memory", Text: "little is left"}, {Kind: "invented", Text: "?"}}
		m.Slots = []*api.SlotStatus{{Kind: "bid-select", Refused: "the module imports what does not exist"}}
	})
	for kind, object := range map[string]string{FaultReplica: "r0", "memory": "migrator r1", "other": "migrator r1", FaultPolicy: "bid-select"} {
		waitFor(t, c, kind+" "+object, func(s Status) bool { return hasFault(s, kind, object) })
		requireNamed(t, c, kind, object, true)
	}
	requireMetrics(t, c, `cascade_replica_health{health="unhealthy",model="m",reason="engine_hung",replica="r0"} 1`)
	f.replicas[0].setReport(func(m *api.LoadReport) { m.EngineReady, m.EngineHung = true, false })
	f.replicas[1].setReport(func(m *api.LoadReport) { m.Problems, m.Slots = nil, nil })
	waitFor(t, c, "no fault again", func(s Status) bool { return len(s.Faults) == 0 })
}

// TestVerdict checks that a fleet without a plan is not well, and that only requests or orders that fail are worse.
func TestVerdict(t *testing.T) {
	one, failing := []Fault{{Kind: FaultReplica}}, []Fault{{Kind: FaultReplica}, {Kind: FaultModel, NotReady: true}}
	for _, c := range []struct {
		faults []Fault
		epoch  policies.Epoch
		want   Verdict
	}{{nil, 0, Starting}, {one, 0, Starting}, {failing, 0, NotReady}, {nil, 1, Well}, {one, 1, Faulty}, {failing, 1, NotReady}} {
		if got := VerdictOf(c.faults, c.epoch); got != c.want {
			t.Errorf("%v, epoch %d: %s, want %s", c.faults, c.epoch, got, c.want)
		}
	}
}

// TestModelFault checks that a model whose replicas take no requests is named, also while one that computes prompts for
// them is healthy.
func TestModelFault(t *testing.T) {
	replica := func(id policies.ReplicaID, health resources.Health, prefill bool) fleet.ReplicaState {
		return fleet.ReplicaState{Endpoint: resources.Endpoint{Replica: policies.Replica{ID: id, Prefill: prefill}, Health: health}}
	}
	dead, draining, prefill := replica("r0", resources.Unhealthy, false), replica("r1", resources.Draining, false), replica("p0", resources.Healthy, true)
	for _, c := range []struct {
		replicas []fleet.ReplicaState
		want     string // "": no fault
	}{
		{[]fleet.ReplicaState{dead, replica("r1", resources.Healthy, false)}, ""},
		{[]fleet.ReplicaState{dead, draining}, "no replica takes requests: r0 is unhealthy, r1 is draining"},
		{[]fleet.ReplicaState{dead, prefill}, "no replica takes requests: r0 is unhealthy"},
		{slices.Repeat([]fleet.ReplicaState{dead}, 10), "r0 is unhealthy, and 2 more"},
	} {
		s := &fleet.Snapshot{Models: []fleet.ModelState{{Model: resources.Model{Name: "m"}, Replicas: c.replicas}}}
		got := modelFaults(s, time.Now())
		if c.want == "" && len(got) == 0 {
			continue
		}
		if len(got) != 1 || got[0].Kind != FaultModel || got[0].Object != "m" || !got[0].NotReady || !strings.HasSuffix(got[0].Text, c.want) {
			t.Errorf("%+v, want %q", got, c.want)
		}
	}
}

// TestPolicyRefusedByNACK checks that a host which refuses a module by xDS, and reports nothing of the slot, is counted
// and named.
func TestPolicyRefusedByNACK(t *testing.T) {
	now := time.Now()
	nodes := []Node{{ID: "migrator/r0", Connected: true, Slots: map[lifecycle.Kind]publish.SlotReply{lifecycle.Place: {Refused: "not a module"}}}}
	stored := []policyslots.Slot{{Kind: lifecycle.Place, Stable: &policyslots.Module{Generation: 3}}}
	sums := policySummaries(policySlots(stored, nil, nodes, now), nil, now)
	if got := policyFaults(sums); sums[0].Nodes != 1 || sums[0].Refusing != 1 || len(got) != 1 || !strings.Contains(got[0].Text, "1 of 1 hosts refuse") || !strings.Contains(got[0].Text, "not a module") {
		t.Errorf("slot %+v, faults %+v", sums, got)
	}
}

// TestUnroutedProxy checks what is said of a proxy that has never accepted a configuration, that the fleet is not ready
// while no proxy has, and what is said of one that keeps the routes that it has.
func TestUnroutedProxy(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		nodes    []Node
		text     string
		notReady bool
	}{
		"the only one":        {[]Node{{ID: "e", Connected: true, Unrouted: true, LastError: "bad", LastErrorAt: now.Add(-time.Hour)}}, "the proxy has accepted no configuration.*: bad", true},
		"another one serves":  {[]Node{{ID: "e", Connected: true, Unrouted: true, LastError: "bad"}, {ID: "f", Connected: true}}, "the proxy has accepted no configuration.*: bad", false},
		"others do not count": {[]Node{{ID: "e", Connected: true, Unrouted: true, LastError: "bad"}, {ID: "f"}, {ID: "g", Connected: true, Unlisted: true}, {ID: "h", Connected: true, Observer: true}}, "no configuration", true},
		"it has routes":       {[]Node{{ID: "e", Connected: true, Refusing: true, LastError: "bad"}}, "keeps its last good version: bad", false},
		"it is unlisted":      {[]Node{{ID: "e", Connected: true, Unlisted: true, Unrouted: true, LastError: "bad"}}, "", false},
	} {
		got := rolloutFaults(publish.Status{Nodes: c.nodes}, now)
		if c.text == "" && len(got) > 0 || c.text != "" && (len(got) != 1 || got[0].Object != "e" || got[0].NotReady != c.notReady || !regexp.MustCompile(c.text).MatchString(got[0].Text)) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestPlanRefusal checks until when a plan that was rolled back is a fault.
func TestPlanRefusal(t *testing.T) {
	at := time.Now()
	stayed := Node{Connected: true, Since: at.Add(-time.Hour)}
	left, anew := Node{Since: at.Add(time.Second)}, Node{Connected: true, Since: at.Add(time.Second)}
	for name, c := range map[string]struct {
		e, f  Node // the refusers
		after time.Duration
		fault bool
	}{
		"at once, although they have left": {left, left, 2 * time.Second, true},
		"while one stays connected":        {left, stayed, 34 * time.Second, true},
		"no longer than 35 s":              {stayed, stayed, 36 * time.Second, false},
		"until they have left":             {left, left, 8 * time.Second, false},
		"until they have connected anew":   {anew, left, 8 * time.Second, false},
	} {
		c.e.ID, c.f.ID = "e", "f"
		others := Node{ID: "g", Connected: true, Since: at.Add(-time.Hour)}
		refused := publish.Refusal{Epoch: 7, Node: "e", Refusers: []string{"e", "f"}, Name: "cascade/m", Text: "bad", At: at}
		s := publish.Status{Nodes: []Node{c.e, c.f, others}, Refused: []publish.Refusal{refused}}
		got := rolloutFaults(s, at.Add(c.after))
		if fault := len(got) == 1 && got[0].Object == "plan"; fault != c.fault || len(got) > 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestOverload checks that refused requests are a fault, with what to do, and part of the rate, in the
// status, the metrics and the console; and that it ends with them.
func TestOverload(t *testing.T) {
	t.Parallel()
	f := newFakeFleet(t, 2)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list})
	for _, r := range f.replicas {
		r.served, r.refused = 1, 0
	}
	f.startReports(t, c)
	waitFor(t, c, "a rate, and no fault", func(s Status) bool { return s.Epoch > 0 && len(s.Faults) == 0 && s.Models[0].Rate > 20 })
	for _, r := range f.replicas {
		r.setReport(func(*api.LoadReport) { r.refused = 3 })
	}
	began := time.Now()
	waitFor(t, c, "the overload", func(s Status) bool { return hasFault(s, FaultOverload, "m") && s.Models[0].RefusedShare > 0.5 })
	if after := time.Since(began); after > 10*time.Second {
		t.Errorf("named after %v", after)
	}
	requireNamed(t, c, FaultOverload, "m", true)
	s := c.Status()
	i := slices.IndexFunc(s.Faults, func(f Fault) bool { return f.Kind == FaultOverload })
	if text := s.Faults[i].Text; !regexp.MustCompile(`^\d\d % of its [\d.]+ requests/s are refused with 429.*: add .*or send less$`).MatchString(text) {
		t.Error(text)
	}
	if v := (consoleSource{c.Control}).View(time.Now()); v.Advice[FaultOverload].Title == "" {
		t.Errorf("the console has no advice: %+v", v.Advice)
	}
	if _, metrics := get(t, c, "/metrics"); !regexp.MustCompile(`(?m)^cascade_requests_refused_total\{model="m"\} [1-9]`).MatchString(metrics) {
		t.Error("no metric of the refused requests")
	}
	for _, r := range f.replicas {
		r.setReport(func(*api.LoadReport) { r.refused = 0 })
	}
	began = time.Now()
	waitFor(t, c, "no fault again", func(s Status) bool { return len(s.Faults) == 0 })
	if after := time.Since(began); after > 10*time.Second {
		t.Errorf("forgotten after %v", after)
	}
}

// TestSilentMigrator checks that a migrator that does not report is a fault whatever its replica did
// before: it said that it stops, an operator drains the replica, or the fleet file does. An undrain does
// not wait for it. The fault ends when it reports again.
func TestSilentMigrator(t *testing.T) {
	f := newFakeFleet(t, 5)
	f.list[2].Draining = true
	rules := fastRules()
	rules.Grace = 300 * time.Millisecond
	c := startControl(t, Config{Rules: rules, Replicas: f.list})
	stop := f.startReports(t, c)
	waitFor(t, c, "no fault", func(s Status) bool { return s.Epoch > 0 && len(s.Faults) == 0 })
	testkit.NoError(t, c.fleet.Order(t.Context(), fleetstate.Drain{Replica: "r1"}))
	f.replicas[0].setReport(func(m *api.LoadReport) { m.Draining = true })
	f.replicas[3].setReport(func(m *api.LoadReport) { m.Draining = true })
	waitFor(t, c, "r0 and r3 stop, which is no fault", func(s Status) bool {
		stops := func(id policies.ReplicaID) bool { return slices.Equal(c.replicaStatus(id).Drain, []string{"migrator"}) }
		return len(s.Faults) == 0 && stops("r0") && stops("r3")
	})
	stop()
	for _, id := range []string{"r0", "r1", "r2", "r3"} {
		waitFor(t, c, id+" named", func(s Status) bool { return hasFault(s, FaultReplica, id) })
		requireMetrics(t, c, `cascade_fault{kind="replica",object="`+id+`"} 1`)
	}
	for id, want := range map[policies.ReplicaID][]string{"r0": nil, "r1": {"operator"}, "r2": {"file"}} {
		if got := c.replicaStatus(id); !slices.Equal(got.Drain, want) || !strings.Contains(got.HealthReason, "start it") || (got.Health == "draining") != (want != nil) {
			t.Errorf("%s is %s, drained by %q: %s", id, got.Health, got.Drain, got.HealthReason)
		}
	}
	f.setReports(func(m *api.LoadReport) { m.Draining = false })
	f.startReports(t, c)
	waitFor(t, c, "no fault again", func(s Status) bool { return len(s.Faults) == 0 })
}

// TestVanishedPlan checks that a plan object that disappears is stored again, with the drains.
func TestVanishedPlan(t *testing.T) {
	f := newFakeFleet(t, 2)
	dir := t.TempDir()
	path := filepath.Join(dir, "plan.json")
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: store.New(testkit.Must(store.NewFile(dir)))})
	f.startReports(t, c)
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch > 0 })
	if code, body := post(t, c, "/drain?replica=r1", nil); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	testkit.NoError(t, os.Remove(path))
	testkit.WaitFor(t, "the plan with the drain", func() bool {
		body, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(body), `"drained"`) && strings.Contains(string(body), `"r1"`)
	})
	if s := c.Status(); len(s.Models[0].Unassigned) != 1 {
		t.Errorf("the drain is lost: %+v", s.Models[0])
	}
}

// TestRefusedClientsTimes checks that a refusal is shown until the fleet's own clients have tried again, and that it is
// over 10 s after the repair, which a client that reads its certificate again may refuse to know for 2 s.
func TestRefusedClientsTimes(t *testing.T) {
	if longest := routing.DefaultBackoffMax * 12 / 10; refusalShown <= longest {
		t.Errorf("a refusal is shown for %v, and clients wait up to %v", refusalShown, longest)
	}
	if most := 8 * time.Second; refusalShown > most {
		t.Errorf("a refusal is shown for %v, want %v at most", refusalShown, most)
	}
}
