package planrollout

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestScenarios runs testdata/rollouts/*.txt (package datadriven; -rewrite rewrites the
// expected output) with a fleet of three groups, a, b and "rest" (the default group). A
// snapshot is written as "3 ab|c": plan 3, replicas a and b in the first stage, c in the
// second; "3 ab|c b=sick" makes b unhealthy.
// Commands:
//
//	nodes a=1 rest=2   sets how many proxies are connected
//	late a=x,y         sets the nodes that have not acknowledged what the group
//	                   waits for; "x@flip": only the routes
//	target 3 ab|c      sets the target snapshot; "urgent 3 ab|c" skips the watch
//	nack x a r         node x of group a refuses its present resources r
//	regression a text  the monitor reports a regression in group a
//	requests 3         sets the requests on removed endpoints; "requests ?": unknown
//	wait 1.5s          advances the clock, with an Observe at every Wake
//	report             prints the report
//	reset              starts a new rollout; in retire.txt, removed endpoints drain, and
//	                   in timers.txt for 3.3s, after a watch of 2.7s
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/rollouts", func(t *testing.T, path string) {
		s := newScenario(t, path)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "reset" {
				s = newScenario(t, path)
				return ""
			}
			var args []string
			for _, arg := range d.CmdArgs {
				args = append(args, arg.String())
			}
			return s.run(d.Cmd, strings.Join(args, " "))
		})
	})
}

// scenario is a rollout with the observations that the file has set.
type scenario struct {
	t           *testing.T
	r           *Rollout
	now         time.Time
	wake        time.Time
	nodes       map[string]int
	late        map[string][]string
	regressions map[string]string
	requests    int // -1: unknown
	out         strings.Builder
}

func newScenario(t *testing.T, path string) *scenario {
	cfg := Config{
		Groups: []string{"a", "b", ""}, Watch: 2 * time.Second, AckTimeout: 3 * time.Second, PollInterval: time.Second,
		Build: renderText, Prove: func(resources.Set) error { return nil },
	}
	if strings.HasSuffix(path, "retire.txt") {
		cfg.DrainTimeout = 30 * time.Second
	}
	if strings.HasSuffix(path, "timers.txt") {
		cfg.Watch, cfg.DrainTimeout = 2700*time.Millisecond, 3300*time.Millisecond
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &scenario{t: t, r: r, now: time.Unix(0, 0), nodes: map[string]int{}, late: map[string][]string{}, regressions: map[string]string{}, requests: -1}
}

// renderText renders a view as text: the members of each stage with their
// health, and the epoch of the routes.
func renderText(v resources.View) (resources.Set, error) {
	health := make(map[policies.ReplicaID]string)
	for _, e := range v.Endpoints {
		health[e.ID] = map[resources.Health]string{resources.Unhealthy: "!", resources.Draining: "-"}[e.Health]
	}
	members := make(map[int]map[string]bool)
	for _, p := range append(slices.Clone(v.Plans), v.Previous...) {
		for k, st := range p.Stages {
			if members[k] == nil {
				members[k] = make(map[string]bool)
			}
			for _, id := range st.Replicas {
				if h, ok := health[id]; ok {
					members[k][string(id)+h] = true
				}
			}
		}
	}
	for _, e := range v.Endpoints {
		if e.Health == resources.Draining {
			members[0][string(e.ID)+"-"] = true // in no plan any more
		}
	}
	all := []*resources.Resource{textResource(resources.RouteType, "r", strconv.Itoa(int(v.Plans[0].Epoch)))}
	for k, m := range members {
		all = append(all, textResource(resources.EndpointType, fmt.Sprint("e", k), strings.Join(slices.Sorted(maps.Keys(m)), "")))
	}
	return resources.NewSet(all...)
}

func textResource(typ, name, body string) *resources.Resource {
	return &resources.Resource{Type: typ, Name: name, Version: body, Body: []byte(body)}
}

// snapshot reads "3 ab|c b=sick".
func (s *scenario) snapshot(arg string) *Snapshot {
	f := strings.Fields(arg)
	epoch, err := strconv.Atoi(f[0])
	if err != nil {
		s.t.Fatal(err)
	}
	p := policies.Plan{Model: "m", Epoch: policies.Epoch(epoch)}
	v := resources.View{Models: []resources.Model{{Name: "m"}}}
	for k, stage := range strings.Split(f[1], "|") {
		p.Stages = append(p.Stages, policies.Stage{})
		for _, id := range stage {
			p.Stages[k].Replicas = append(p.Stages[k].Replicas, policies.ReplicaID(id))
			e := resources.Endpoint{
				Replica: policies.Replica{ID: policies.ReplicaID(id), Model: "m", Address: fmt.Sprint("10.0.0.", int(id), ":1")},
			}
			if slices.Contains(f, string(id)+"=sick") {
				e.Health = resources.Unhealthy
			}
			v.Endpoints = append(v.Endpoints, e)
		}
	}
	v.Plans = []policies.Plan{p}
	set, err := renderText(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return &Snapshot{View: v, Set: set}
}

func groupNamed(name string) string { return strings.TrimPrefix(name, "rest") }

func (s *scenario) run(command, arg string) string {
	s.out.Reset()
	pairs := func(set func(group, value string)) {
		for _, f := range strings.Fields(arg) {
			g, v, _ := strings.Cut(f, "=")
			set(groupNamed(g), v)
		}
	}
	switch command {
	case "nodes":
		pairs(func(g, v string) { s.nodes[g], _ = strconv.Atoi(v) })
	case "late":
		pairs(func(g, v string) { s.late[g] = strings.FieldsFunc(v, func(r rune) bool { return r == ',' }) })
	case "regression":
		g, why, _ := strings.Cut(arg, " ")
		s.regressions[groupNamed(g)] = why
	case "requests":
		if n, err := strconv.Atoi(arg); err == nil {
			s.requests = n
		} else {
			s.requests = -1
		}
	case "target", "urgent":
		s.step(SetTarget{Snapshot: s.snapshot(arg), Urgent: command == "urgent"})
	case "nack":
		f := strings.Fields(arg)
		e := NACK{Node: f[0], Group: groupNamed(f[1]), Nodes: s.nodes[groupNamed(f[1])], Type: resources.EndpointType, Text: "no"}
		for _, name := range f[2:] {
			if name == "r" {
				e.Type = resources.RouteType
			}
			if r := s.r.groups[e.Group].set.Get(e.Type, name); r != nil {
				e.Resources = append(e.Resources, Version{r.Name, r.Version})
			}
		}
		s.step(e)
	case "report":
		s.report()
	case "wait":
		d, err := time.ParseDuration(arg)
		if err != nil {
			s.t.Fatal(err)
		}
		for end := s.now.Add(d); s.now.Before(end); {
			s.now = end
			if s.wake.After(time.Time{}) && s.wake.Before(end) {
				s.now = s.wake
			}
			s.observe()
		}
	default:
		s.t.Fatalf("unknown command %q", command)
	}
	s.observe()
	return s.out.String()
}

// report prints the report of the rollout.
func (s *scenario) report() {
	rep := s.r.Report()
	fmt.Fprintf(&s.out, "target %d, rolling %d, stopped %v, blocked %q\n", rep.Target, rep.Rolling, rep.Stopped, rep.Blocked)
	for _, g := range rep.Groups {
		fmt.Fprintf(&s.out, "  %q %s: routes %d, nodes %d", g.Name, g.Phase, g.Epoch, g.Nodes)
		if !g.Until.IsZero() {
			fmt.Fprintf(&s.out, ", until %s", g.Until.UTC().Format("04:05.0"))
		}
		if g.Reverting {
			s.out.WriteString(", reverting")
		}
		if len(g.Fenced)+len(g.Refusing) > 0 {
			fmt.Fprintf(&s.out, ", fenced %v, refusing %v", g.Fenced, g.Refusing)
		}
		s.out.WriteString("\n")
	}
}

// observe passes the observations of the file to the rollout.
func (s *scenario) observe() {
	groups := make(map[string]Observation)
	for _, n := range s.r.Queries() {
		f := Observation{Serial: n.Serial, Nodes: s.nodes[n.Group], Late: make(map[string]bool), Behind: make(map[string]bool), Requests: max(s.requests, 0), RequestsKnown: s.requests >= 0}
		for _, id := range s.late[n.Group] {
			id, flip := strings.CutSuffix(id, "@flip")
			f.Late[id], f.Behind[id] = len(n.Types) > 0 && (!flip || n.Types[0] == awaitedTypes[Flip][0]), true
		}
		maps.DeleteFunc(f.Late, func(_ string, late bool) bool { return !late })
		if !n.TrialSince.IsZero() {
			f.Regression = s.regressions[n.Group]
		}
		groups[n.Group] = f
	}
	s.step(Observe{groups})
}

func (s *scenario) step(e Event) {
	out := s.r.Step(s.now, e)
	name := func(g string) string {
		if g == "" {
			return "rest"
		}
		return g
	}
	for _, n := range out.Notes {
		fmt.Fprintf(&s.out, "%s:", strings.TrimSuffix(s.now.UTC().Format("04:05.0"), ".0"))
		if n.Epoch != 0 {
			fmt.Fprintf(&s.out, " plan %d:", n.Epoch)
		}
		fmt.Fprintf(&s.out, " %s", n.Text)
		if n.Group != "" || n.Text == "plan rollout started in group" || n.Text == "plan settled in group" {
			fmt.Fprintf(&s.out, " %s", name(n.Group))
		}
		if n.Node != "" {
			fmt.Fprintf(&s.out, ", node %s", n.Node)
		}
		if n.Why != "" {
			fmt.Fprintf(&s.out, ": %s", n.Why)
		}
		s.out.WriteString("\n")
	}
	for _, sh := range out.Applies {
		routes := "none"
		if r := sh.Set.Get(resources.RouteType, "r"); r != nil {
			routes = string(r.Body)
		}
		fmt.Fprintf(&s.out, "  %-4s %s: routes %s", name(sh.Group), sh.Phase, routes)
		for _, r := range sh.Set.All(resources.EndpointType) {
			fmt.Fprintf(&s.out, ", %s %s", r.Name, r.Body)
		}
		s.out.WriteString("\n")
	}
	for _, f := range out.Refused {
		fmt.Fprintf(&s.out, "  reports refusal of plan %d: %v\n", f.Epoch, f.Plans)
	}
	s.wake = out.Wake
	if out.ObserveNow {
		s.observe()
	}
}
