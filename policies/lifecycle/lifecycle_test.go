package lifecycle_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// TestNames checks that goals, phases and digests are read as they are written.
func TestNames(t *testing.T) {
	for g := range lifecycle.ToStable + 1 {
		var got lifecycle.Goal = 99
		if err := got.UnmarshalText([]byte(g.String())); err != nil || got != g {
			t.Errorf("goal %q is read as %v, error %v", g, got, err)
		}
	}
	for _, name := range []string{"", "canaries", strings.Repeat("x", 1000)} {
		if g, err := lifecycle.ParseGoal(name); err == nil || len(err.Error()) > 200 {
			t.Errorf("goal %.20q is read as %v, error %v", name, g, err)
		}
	}
	for p := range lifecycle.Withdrawn + 1 {
		var got lifecycle.Phase = 99
		if err := got.UnmarshalText([]byte(p.String())); err != nil || got != p {
			t.Errorf("phase %q is read as %v, error %v", p, got, err)
		}
		if p.Ended() != (p == lifecycle.Rejected || p == lifecycle.RolledBack || p == lifecycle.Superseded || p == lifecycle.Withdrawn) {
			t.Errorf("phase %v has ended: %v", p, p.Ended())
		}
	}
	if got := lifecycle.ParsePhase("of a newer host"); got != 0 {
		t.Errorf("an unknown phase is read as %v", got)
	}
	if (lifecycle.ToStable+1).String() != "unknown" || (lifecycle.Withdrawn+1).String() != "unknown" {
		t.Error("values beyond the last have names")
	}
	for _, d := range []lifecycle.Digest{{}, lifecycle.Sum([]byte("x"))} {
		text, err := json.Marshal(d)
		var got lifecycle.Digest
		if err2 := json.Unmarshal(text, &got); err != nil || err2 != nil || got != d || (len(text) == 2) != (d == lifecycle.Digest{}) {
			t.Errorf("digest %s is read as %v, errors %v and %v", text, got, err, err2)
		}
	}
}

// TestFigures adds counts that differ in every field.
func TestFigures(t *testing.T) {
	f := lifecycle.Figures{Calls: 1, Faults: 2, Differ: 3, Worse: 4, Compared: 5}
	f.Add(lifecycle.Figures{Calls: 10, Faults: 20, Differ: 30, Worse: 40, Compared: 50})
	if want := (lifecycle.Figures{Calls: 11, Faults: 22, Differ: 33, Worse: 44, Compared: 55}); !reflect.DeepEqual(f, want) {
		t.Errorf("%+v", f)
	}
}

// TestWhy checks what an operator reads about a generation.
func TestWhy(t *testing.T) {
	for want, s := range map[string]lifecycle.Status{
		"": {}, "few calls": {Reason: "few calls"},
		"would not be promoted: 3 worse; few calls": {Reason: "few calls", Blocked: "3 worse"}, "inconclusive: 1 worse": {Inconclusive: "1 worse"},
	} {
		if got := s.Why(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestCheckGoal goes through the parameters of a canary for both sorts of kinds.
func TestCheckGoal(t *testing.T) {
	for _, c := range []struct {
		kind     lifecycle.Kind
		goal     lifecycle.Goal
		permille int
		scope    string
		want     string // the parameter that is wrong
	}{
		{lifecycle.Place, lifecycle.ToWarm, 0, "", ""},
		{lifecycle.Place, lifecycle.ToStable, 0, "", ""},
		{lifecycle.Place, 0, 0, "", "goal"},
		{lifecycle.Place, lifecycle.ToStable + 1, 0, "", "goal"},
		{lifecycle.Place, lifecycle.ToCanary, 1, "", ""},
		{lifecycle.Place, lifecycle.ToCanary, 999, "", ""},
		{lifecycle.Place, lifecycle.ToCanary, 1000, "", "permille"},
		{lifecycle.Place, lifecycle.ToCanary, -1, "", "permille"},
		{lifecycle.Place, lifecycle.ToCanary, 0, "", "permille"},
		{lifecycle.Place, lifecycle.ToShadow, 0, "m", "scope"},
		{lifecycle.Refine, lifecycle.ToCanary, 0, "h", ""},
		{lifecycle.Refine, lifecycle.ToActive, 0, "h", ""},
		{lifecycle.Refine, lifecycle.ToCanary, 0, "", "scope"},
		{lifecycle.Refine, lifecycle.ToActive, 0, "", "scope"},
		{lifecycle.Refine, lifecycle.ToShadow, 0, "", ""},
		{lifecycle.Refine, lifecycle.ToStable, 0, "", ""},
		{lifecycle.Refine, lifecycle.ToCanary, 5, "h", "permille"},
	} {
		err := lifecycle.CheckGoal(c.kind, c.goal, c.permille, c.scope)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestValidate breaks each invariant of a spec.
func TestValidate(t *testing.T) {
	stable := func(g lifecycle.Generation) lifecycle.Candidate {
		return lifecycle.Candidate{Generation: g, Goal: lifecycle.ToActive, Stable: true}
	}
	trial := func(g lifecycle.Generation) lifecycle.Candidate {
		return lifecycle.Candidate{Generation: g, Goal: lifecycle.ToShadow}
	}
	of := func(all ...lifecycle.Candidate) lifecycle.SlotSpec {
		return lifecycle.SlotSpec{Kind: lifecycle.Place, Candidates: all}
	}
	with := func(s lifecycle.SlotSpec, change func(*lifecycle.SlotSpec)) lifecycle.SlotSpec {
		change(&s)
		return s
	}
	back := func(all ...lifecycle.RolledBackModule) func(*lifecycle.SlotSpec) {
		return func(s *lifecycle.SlotSpec) { s.RolledBack = all }
	}
	for want, s := range map[string]lifecycle.SlotSpec{
		"":                                of(stable(2), trial(3)),
		`kind: "coffee"`:                  {Kind: "coffee"},
		"candidates[0].generation: 0":     of(trial(0)),
		"candidates[1].generation: 3":     of(stable(3), trial(3)),
		"candidates[1]: at most":          of(trial(3), trial(4)),
		"candidates[2]: at most":          of(stable(2), trial(3), trial(4)),
		"candidates[1].stable: only":      of(stable(2), stable(3)),
		"candidates[0].stable: its goal":  of(lifecycle.Candidate{Generation: 2, Goal: lifecycle.ToShadow, Stable: true}),
		"candidates[0].stable: its goal ": of(lifecycle.Candidate{Generation: 2, Goal: lifecycle.ToActive, Permille: 3, Stable: true}),
		"candidates[0].goal: \"stable\"":  of(lifecycle.Candidate{Generation: 2, Goal: lifecycle.ToStable}),
		"candidates[0].permille: give":    of(lifecycle.Candidate{Generation: 2, Goal: lifecycle.ToCanary}),
		"candidates[0].generation: 3 was": with(of(trial(3)), back(lifecycle.RolledBackModule{Generation: 3})),
		"rolled_back[1].generation: 3":    with(of(), back(lifecycle.RolledBackModule{Generation: 3}, lifecycle.RolledBackModule{Generation: 3})),
		"rolled_back: more than":          with(of(), back(make([]lifecycle.RolledBackModule, lifecycle.MaxRolledBack+1)...)),
		"previous: ":                      with(of(trial(3)), func(s *lifecycle.SlotSpec) { s.Previous = []byte("x") }),
	} {
		if err := s.Validate(); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
