package planrollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestDefaults checks that a rollout with the least configuration renders and proves real
// plans, and does not poll without a pause.
func TestDefaults(t *testing.T) {
	r := testkit.Must(New(Config{Groups: []string{""}, AckTimeout: time.Second, DrainTimeout: time.Minute}))
	target := func(epoch policies.Epoch, text string) *Snapshot {
		return testkit.Must(NewSnapshot(realView(epoch, text), resources.Prove))
	}
	now := time.Unix(100, 0)
	r.Step(now, SetTarget{Snapshot: target(1, "a b | c")})
	out := r.Step(now, SetTarget{Snapshot: target(2, "a | c")})
	for range 9 {
		if !out.ObserveNow {
			break
		}
		q := r.Queries()[0]
		out = r.Step(now, Observe{map[string]Observation{"": {Serial: q.Serial, Nodes: 1, Requests: 2, RequestsKnown: true}}})
	}
	rep := r.Report()
	if rep.Blocked != "" || rep.Groups[0].Epoch != 2 || rep.Groups[0].Phase != Retire {
		t.Fatalf("plan 2 is not in force: %+v", rep)
	}
	if r.groups[""].requestsUnknown {
		t.Error("it was not asked for the requests of b")
	}
	if out.Wake != now.Add(defaultPoll) {
		t.Errorf("the next look at the requests of b is at %v, now is %v", out.Wake, now)
	}
	r = testkit.Must(New(Config{Groups: []string{""}, AckTimeout: time.Second}))
	broken := target(3, "a | c")
	broken.Set = broken.Set.WithTypes(resources.Set{}, resources.ClusterType)
	if out := r.Step(now, SetTarget{Snapshot: broken}); len(out.Applies) > 0 || r.Report().Blocked == "" {
		t.Errorf("a set whose routes name no cluster is applied: %+v", r.Report())
	}
}

// realView returns a view of model m with the stages, from which package resources makes
// real resources. They are divided at 100, 200, …
func realView(epoch policies.Epoch, text string) resources.View {
	p, ids := policies.Plan{Model: "m", Epoch: epoch}, map[policies.ReplicaID]bool{}
	v := resources.View{Models: []resources.Model{{Name: "m", Context: 1000}}}
	for k, stage := range strings.Split(text, " | ") {
		st := policies.Stage{Low: policies.Tokens(100 * k), High: policies.Tokens(100 * (k + 1))}
		for _, id := range strings.Fields(stage) {
			id := policies.ReplicaID(id)
			st.Replicas = append(st.Replicas, id)
			if !ids[id] {
				ids[id] = true
				v.Endpoints = append(v.Endpoints, resources.Endpoint{
					Replica: policies.Replica{ID: id, Model: "m", Address: "10.0.0." + string('0'+id[0]-'a') + ":1"},
				})
			}
		}
		p.Stages = append(p.Stages, st)
	}
	p.Stages[len(p.Stages)-1].High = policies.Unbounded
	v.Plans = []policies.Plan{p}
	return v
}

// TestSameExceptHealth checks which changes of a view keep a plan's rollout.
func TestSameExceptHealth(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*resources.View)
		same bool
	}{
		"nothing":          {func(*resources.View) {}, true},
		"health":           {func(v *resources.View) { v.Endpoints[0].Health, v.Endpoints[1].Weight = resources.Unhealthy, 7 }, true},
		"an address":       {func(v *resources.View) { v.Endpoints[0].Address = "10.0.0.9:1" }, false},
		"a host":           {func(v *resources.View) { v.Endpoints[0].Host = "x" }, false},
		"one in no plan":   {func(v *resources.View) { v.Endpoints = v.Endpoints[:3] }, false},
		"one instead":      {func(v *resources.View) { v.Endpoints[3].ID = "e" }, false},
		"members":          {func(v *resources.View) { v.Plans[0].Stages[0].Replicas = []policies.ReplicaID{"a", "d"} }, false},
		"the second model": {func(v *resources.View) { v.Plans = v.Plans[:1] }, false},
		"another model":    {func(v *resources.View) { v.Plans[1].Model = "o" }, false},
	} {
		view := func() resources.View {
			v := realView(1, "a b | c")
			v.Endpoints = append(v.Endpoints, resources.Endpoint{Replica: policies.Replica{ID: "d", Model: "m", Address: "10.0.0.3:1"}})
			v.Plans = append(v.Plans, policies.OneStagePlan("n", nil))
			return v
		}
		other := view()
		c.edit(&other)
		one, two := &Snapshot{View: view()}, &Snapshot{View: other}
		if got := one.sameExceptHealth(two); got != c.same || two.sameExceptHealth(one) != c.same {
			t.Errorf("%s: same is %v, and %v the other way round", name, got, two.sameExceptHealth(one))
		}
	}
}

// TestHealthOfOthers checks that an endpoint takes over health and weight from itself only,
// not from another one with its id.
func TestHealthOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*resources.Endpoint)
		took bool
	}{
		"itself":           {func(*resources.Endpoint) {}, true},
		"another spelling": {func(e *resources.Endpoint) { e.Address = "[::ffff:10.0.0.0]:1" }, false},
		"another address":  {func(e *resources.Endpoint) { e.Address = "10.0.0.7:1" }, false},
		"another model":    {func(e *resources.Endpoint) { e.Model = "n" }, false},
		"another id":       {func(e *resources.Endpoint) { e.ID = "z" }, false},
	} {
		s, latest := &Snapshot{View: realView(1, "a b | c")}, realView(1, "a b | c")
		latest.Endpoints[0].Health, latest.Endpoints[0].Weight = resources.Unhealthy, 9
		c.edit(&latest.Endpoints[0])
		v, changed := s.withHealthOf(latest)
		if took := v.Endpoints[0].Health == resources.Unhealthy && v.Endpoints[0].Weight == 9; took != c.took || changed != c.took {
			t.Errorf("%s: took %v, changed %v", name, took, changed)
		}
		if s.View.Endpoints[0].Health != resources.Healthy {
			t.Errorf("%s: changed the snapshot", name)
		}
	}
}

// TestWakes checks when a rollout is due next without an event: at the end of a drain, not
// only at the next poll, and never for what it does not wait for.
func TestWakes(t *testing.T) {
	s := newScenario(t, "timers.txt")
	for _, c := range [][2]string{{"nodes", "a=1 rest=1"}, {"requests", "2"}, {"target", "1 ab|c"}} {
		s.run(c[0], c[1])
	}
	quiet := make(map[string]Observation)
	for _, q := range s.r.Queries() {
		if q.WantBehind {
			t.Errorf("group %q compares all versions of its nodes, and none has refused any", q.Group)
		}
		quiet[q.Group] = Observation{Serial: q.Serial, Nodes: 1, OthersLate: true}
	}
	if out := s.r.Step(s.now, Observe{quiet}); !out.Wake.IsZero() {
		t.Errorf("a rollout that waits for nothing is due at %v", out.Wake)
	}
	s.r.Step(s.now, Observe{map[string]Observation{"a": {Serial: 999, Nodes: 77}}})
	if n := s.r.Report().Groups[0].Nodes; n != 1 {
		t.Errorf("an answer to another query counts: %d nodes", n)
	}
	s.run("target", "2 a|c")
	s.run("wait", "5.5s") // the watch ended at 2.7 s, the drain ends at 6 s
	if want := time.Unix(6, 0); !s.wake.Equal(want) {
		t.Errorf("due at %v, want the end of the drain at %v", s.wake, want)
	}
	out := s.r.Step(s.now, SetTarget{Snapshot: s.snapshot("2 a|c a=sick")})
	if len(out.Applies) != 3 || !out.ObserveNow {
		t.Errorf("new health: applied to %d groups, to be observed now is %v", len(out.Applies), out.ObserveNow)
	}
}

// TestHealthIsProven checks that health of a plan in force is applied only if it is proven.
func TestHealthIsProven(t *testing.T) {
	s := newScenario(t, "")
	s.r.cfg.Prove = func(set resources.Set) error {
		if r := set.Get(resources.EndpointType, "e0"); r != nil && strings.Contains(r.Version, "!") {
			return errors.New("a stage is sick")
		}
		return nil
	}
	s.run("nodes", "a=1")
	s.run("target", "1 ab|c")
	got := s.run("target", "2 a|bc b=sick a=sick")
	if !strings.Contains(got, "plan 1: health update not applied: a stage is sick") {
		t.Error(got)
	}
}

// TestNegativeTimes checks that no time of a configuration may be negative.
func TestNegativeTimes(t *testing.T) {
	base := Config{Groups: []string{""}, AckTimeout: 1}
	for name, edit := range map[string]func(*Config){
		"ack timeout":   func(c *Config) { c.AckTimeout = -1 },
		"watch":         func(c *Config) { c.Watch = -1 },
		"drain timeout": func(c *Config) { c.DrainTimeout = -1 },
		"poll interval": func(c *Config) { c.PollInterval = -1 },
	} {
		c := base
		edit(&c)
		_, err := New(c)
		testkit.WantError(t, err, name)
	}
	testkit.Must(New(base))
}

// TestRefusalsOfThePlan checks which NACKs count against the plan in progress.
func TestRefusalsOfThePlan(t *testing.T) {
	for name, c := range map[string]struct {
		group, typ string
		versions   []Version
		early      bool // in phase Add
		counts     bool
	}{
		"its routes":                   {"a", resources.RouteType, []Version{{"r", "2"}}, false, true},
		"the routes before it":         {"a", resources.RouteType, []Version{{"r", "1"}}, true, false},
		"routes that were replaced":    {"a", resources.RouteType, []Version{{"r", "0"}}, false, false},
		"its endpoints":                {"a", resources.EndpointType, []Version{{"e1", "bc"}}, true, true},
		"endpoints of both plans":      {"a", resources.EndpointType, []Version{{"e0", "ab"}}, true, false},
		"some of a response":           {"a", resources.EndpointType, []Version{{"e0", "ab"}, {"e1", "bc"}}, true, true},
		"in a group that lacks it":     {"b", resources.EndpointType, []Version{{"e1", "bc"}}, true, false},
		"in a group that has it later": {"b", resources.RouteType, []Version{{"r", "2"}}, false, false},
		"in no group":                  {"x", resources.RouteType, []Version{{"r", "2"}}, false, false},
		"of nothing":                   {"a", resources.RouteType, nil, false, false},
	} {
		s := newScenario(t, "")
		s.run("nodes", "a=8 b=1")
		s.run("target", "1 ab|c")
		if c.early {
			s.run("late", "a=n2")
		} else {
			s.run("late", "a=n2@flip")
		}
		s.run("target", "2 a|bc")
		out := s.r.Step(s.now, NACK{Node: "n", Group: c.group, Type: c.typ, Resources: c.versions, Nodes: 8, Text: "no"})
		if counts := len(out.Refused) == 1 && out.Refused[0].Epoch == 2 && slices.Equal(out.Refused[0].Plans, []RefusedPlan{{"m", 2, 1}}); counts != c.counts {
			t.Errorf("%s: %+v, want a refusal of the plan: %v", name, out.Refused, c.counts)
		}
		if r := s.r.Report(); (r.Rolling == 0) != c.counts || (r.Blocked != "") != c.counts {
			t.Errorf("%s: rolling %d, blocked %q", name, r.Rolling, r.Blocked)
		}
	}
}

// TestRefusedPlansAreBounded checks that the last refused plans are remembered.
func TestRefusedPlansAreBounded(t *testing.T) {
	s := newScenario(t, "")
	s.run("nodes", "a=1")
	s.run("target", "1 ab|c")
	for epoch := 2; epoch < maxRefused+4; epoch++ {
		s.run("late", "a=n@flip")
		s.run("target", fmt.Sprint(epoch, " a|bc"))
		s.run("nack", "n a r")
		s.run("late", "a=")
	}
	if got := s.r.Refusals(); len(got) != maxRefused || got[0].Epoch != 4 {
		t.Errorf("%d are remembered: %+v", len(got), got)
	}
}

// TestNewHealthIsObserved checks that a set which changes within a phase is observed at once.
func TestNewHealthIsObserved(t *testing.T) {
	s := newScenario(t, "")
	s.r = testkit.Must(New(Config{Groups: []string{""}, AckTimeout: time.Second, Build: renderText, Prove: func(resources.Set) error { return nil }}))
	s.r.Step(s.now, SetTarget{Snapshot: s.snapshot("1 ab|c")})
	s.r.Step(s.now, SetTarget{Snapshot: s.snapshot("1 ab|c b=sick")}) // phase Add
	out := s.r.Step(s.now, SetTarget{Snapshot: s.snapshot("1 ab|c a=sick")})
	if len(out.Applies) != 1 || out.Applies[0].Phase != Add || !out.ObserveNow {
		t.Errorf("%+v", out)
	}
}
