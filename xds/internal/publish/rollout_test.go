package publish

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

// TestWakes checks when a rollout is due next without an event: at the next poll or the end of a
// watch or a drain, and never if it waits for nothing.
func TestWakes(t *testing.T) {
	s := newScenario(t, "timers.txt")
	due := func(want time.Duration) {
		t.Helper()
		wake := s.r.nextWake(s.now)
		if want == 0 && !wake.IsZero() || want > 0 && !wake.Equal(time.Unix(0, 0).Add(want)) {
			t.Errorf("at %v the rollout is due at %v, want %v", s.now.Sub(time.Unix(0, 0)), wake.Sub(time.Unix(0, 0)), want)
		}
	}
	for _, c := range [][2]string{{"nodes", "a=1 rest=1"}, {"requests", "2"}, {"target", "1 ab|c"}} {
		s.run(c[0], c[1])
	}
	due(0)
	s.run("target", "2 a|c")
	due(pollInterval) // of the watch
	s.now = s.now.Add(2600 * time.Millisecond)
	due(2700 * time.Millisecond)
	s.run("wait", "1s")
	due(3600*time.Millisecond + pollInterval) // of the requests on b
	s.run("wait", "2.3s")
	due(6 * time.Second) // the drain began after the watch
}

// TestNewTargetTimesNodesAnew checks that a node which has caught up, unnoticed so far, when there is
// new health is not late since before.
func TestNewTargetTimesNodesAnew(t *testing.T) {
	s := newScenario(t, "")
	s.run("nodes", "a=1 rest=1")
	s.run("target", "1 ab|c")
	s.run("late", "a=n")
	s.run("target", "2 a|bc")
	s.now = s.now.Add(s.r.cfg.AckTimeout)
	late := s.late["a"]
	s.late["a"] = nil
	s.r.nodes = func(q query) observation {
		f := s.answer(q)
		if q.group == "" {
			s.late["a"] = late // it lacks the new health
		}
		return f
	}
	testkit.NoError(t, s.r.setTarget(s.now, s.view("2 a|bc a=sick")))
	if g := s.r.status().Groups[0]; len(g.fenced) > 0 || g.phase != add {
		t.Errorf("in phase %s, fenced %v", g.phase, g.fenced)
	}
}

// TestUnprovenSets checks that no set is applied that is not proven: neither the first, nor new health
// of the plan in force, nor a step of a plan, which is then rolled back, nor a step back, in whose place
// the plan in force is applied at once.
func TestUnprovenSets(t *testing.T) {
	var log testkit.Log
	var s *scenario
	bad := "a: b:" // the endpoints of the first stage that are not proven
	begin := func() {
		s = newScenario(t, "")
		s.r.cfg.Logger = log.Logger()
		s.r.prove = func(set resources.Set) error {
			if string(set.Get(resources.EndpointType, "cascade/m/s0").Body) == bad {
				return errors.New("not proven")
			}
			return nil
		}
	}
	begin()
	testkit.WantError(t, s.r.setTarget(s.now, s.view("1 ab|c")), "not proven")
	r := newRollout(Config{}, nil)
	r.build = func(v resources.View) (resources.Set, error) {
		set, err := resources.Build(v)
		return set.WithTypes(resources.Set{}, resources.ClusterType), err
	}
	testkit.WantError(t, r.setTarget(s.now, View(1, nil, "a")), "cluster")
	bad = "a:! b:!"
	s.run("nodes", "a=1")
	s.run("target", "1 ab|c")
	if got := s.run("target", "2 a|bc a=sick b=sick"); got != "" || s.r.status().blocked != "add: not proven" {
		t.Errorf("new health that is not proven: %q, blocked %q", got, s.r.status().blocked)
	}
	begin()
	bad = "a: b: c:"
	s.run("nodes", "a=1 rest=1")
	s.run("target", "1 ab|c")
	if got := s.run("target", "2 bc|a"); got != "" || s.r.status().blocked != "add: not proven" {
		t.Errorf("a step that is not proven: %q, blocked %q", got, s.r.status().blocked)
	}
	bad = ""
	s.run("target", "3 ac|b")
	bad = "a: b: c:"
	if got := s.run("regression", "a slow"); got != "  a    idle: routes 1, e0 ab, e1 c\n" {
		t.Errorf("a step back that is not proven: %q", got)
	}
	bad = ""
	begin()
	s.run("nodes", "a=1")
	s.run("target", "1 ab|c")
	s.run("late", "a=n@flip")
	s.run("target", "2 ac|b")
	bad = "a: b: c:"
	if got := s.run("late", "a="); got != "  a    idle: routes 1, e0 ab, e1 c\n" {
		t.Errorf("a step of a group without nodes that is not proven: %q", got)
	}
	for _, want := range []string{
		`level=WARN msg="health update not applied" epoch=1 reason="not proven"`,
		`level=WARN msg="plan rolled back" epoch=2 reason="add: not proven"`, `level=INFO msg="plan settled in group" group=a epoch=3`,
		`level=WARN msg="phase not applied" group=a reason="flip: not proven"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, &log)
		}
	}
}

// TestRefusalsOfThePlan checks which NACKs count against the plan in progress.
func TestRefusalsOfThePlan(t *testing.T) {
	text := func(name, body string) version {
		return version{name, resources.Version([]byte(typeOf(name) + name + body))}
	}
	const e0, e1, routes = "cascade/m/s0", "cascade/m/s1", resources.RouteName
	for name, c := range map[string]struct {
		group    string
		versions []version
		early    bool // in phase add
		counts   bool
	}{
		"its routes":                   {"a", []version{text(routes, "plan 2")}, false, true},
		"the routes before it":         {"a", []version{text(routes, "plan 1")}, true, false},
		"routes that were replaced":    {"a", []version{text(routes, "plan 0")}, false, false},
		"its endpoints":                {"a", []version{text(e1, "b: c:")}, true, true},
		"endpoints of both plans":      {"a", []version{text(e0, "a: b:")}, true, false},
		"some of a response":           {"a", []version{text(e0, "a: b:"), text(e1, "b: c:")}, true, true},
		"in a group that lacks it":     {"b", []version{text(e1, "b: c:")}, true, false},
		"in a group that has it later": {"b", []version{text(routes, "plan 2")}, false, false},
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
		s.late[c.group] = append(s.late[c.group], "n")
		s.refuse(c.group, refusal{node: "n", typ: typeOf(c.versions[0].name), versions: c.versions, text: "no"})
		s.r.observe(s.now)
		st := s.r.status()
		if counts := len(st.Refused) == 1 && st.Refused[0].Epoch == 2 && slices.Equal(st.Refused[0].Plans, []RefusedPlan{{"m", 2, 1}}); counts != c.counts {
			t.Errorf("%s: %+v, want a refusal of the plan: %v", name, st.Refused, c.counts)
		}
		if (st.rolling == 0) != c.counts || (st.blocked != "") != c.counts {
			t.Errorf("%s: rolling %d, blocked %q", name, st.rolling, st.blocked)
		}
	}
}

// typeOf returns the type of a resource that refusals name.
func typeOf(name string) string {
	if name == resources.RouteName {
		return resources.RouteType
	}
	return resources.EndpointType
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
	if got := s.r.status().Refused; len(got) != maxRefused || got[0].Epoch != 4 {
		t.Errorf("%d are remembered: %+v", len(got), got)
	}
}

// TestEpochsAreBounded checks that the versions of the last route tables are known.
func TestEpochsAreBounded(t *testing.T) {
	r := newScenario(t, "").r
	for i := range policies.Epoch(maxEpochs + 5) {
		for _, health := range []string{"well", "sick"} {
			r.rememberRoutes(testkit.Must(resources.NewSet(
				&resources.Resource{Type: resources.RouteType, Name: "r", Version: fmt.Sprint(i)},
				&resources.Resource{Type: resources.EndpointType, Name: "e", Version: health})), i)
		}
	}
	if _, forgotten := r.epochs["3"]; len(r.epochs) != maxEpochs+1 || forgotten || r.epochs["4"] != 4 || r.epochs["20"] != 20 {
		t.Errorf("%v are kept", r.epochs)
	}
}
