package publish

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestRollouts runs testdata/rollouts/*.txt (package datadriven; -rewrite rewrites the
// expected output) with a fleet of three groups, a, b and "rest" (the default group). A
// plan is written as "3 ab|c": plan 3, replicas a and b in the first stage, c in the
// second; "3 ab|c b=sick" makes b unhealthy.
// Commands:
//
//	nodes a=1 rest=2   sets how many proxies are connected
//	late a=x,y         sets the nodes that have not acknowledged what the group
//	                   waits for; "x@flip": only the routes
//	target 3 ab|c      sets the target
//	others a           the groups in which nodes that do not count have not acknowledged it
//	nack x a r         node x of group a, which is late, refuses its present resources r
//	regression a text  the monitor reports a regression in group a
//	requests 3         sets the requests on removed endpoints; "requests ?": unknown
//	wait 1.5s          advances the clock, with an observation when one is due
//	report             prints the status
//	reset              starts a new rollout; in retire.txt, removed endpoints drain, and
//	                   in timers.txt for 3.3s, after a watch of 2.7s
func TestRollouts(t *testing.T) {
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

// scenario is a rollout with a fleet whose state the file has set. It is the rollout's Cache, Monitor
// and RequestCounter, and the handler of its log.
type scenario struct {
	noCache
	slog.Handler
	t           *testing.T
	r           *rollout
	now         time.Time
	nodes       map[string]int
	late        map[string][]string
	others      map[string]bool
	refusals    map[string][]refusal
	regressions map[string]string
	requests    int // -1: unknown
	applied     map[string]resources.Set
	out         strings.Builder
}

func newScenario(t *testing.T, path string) *scenario {
	s := &scenario{t: t, now: time.Unix(0, 0), nodes: map[string]int{}, late: map[string][]string{}, refusals: map[string][]refusal{}, regressions: map[string]string{}, requests: -1, applied: map[string]resources.Set{}}
	groups := testkit.Must(resources.NewGroups([]resources.GroupRule{{Name: "a", Nodes: []string{"a*"}}, {Name: "b", Nodes: []string{"b*"}}}))
	cfg := Config{Groups: groups, Cache: s, Monitor: s, RequestCounter: s, Watch: 2 * time.Second, AckTimeout: 3 * time.Second, Logger: slog.New(s)}
	cfg.OnRefusal = func(f Refusal) { fmt.Fprintf(&s.out, "  reports refusal of plan %d: %v\n", f.Epoch, f.Plans) }
	if strings.HasSuffix(path, "retire.txt") {
		cfg.DrainTimeout = 30 * time.Second
	}
	if strings.HasSuffix(path, "timers.txt") {
		cfg.Watch, cfg.DrainTimeout = 2700*time.Millisecond, 3300*time.Millisecond
	}
	s.r = newRollout(cfg, s.answer)
	s.r.build, s.r.prove = textSet, func(resources.Set) error { return nil }
	return s
}

// view reads "3 ab|c b=sick".
func (s *scenario) view(arg string) resources.View {
	f := strings.Fields(arg)
	epoch := testkit.Must(strconv.Atoi(f[0]))
	v := View(policies.Epoch(epoch), nil, strings.Split(strings.Join(strings.Split(f[1], ""), " "), "|")...)
	for i, e := range v.Endpoints {
		if slices.Contains(f, string(e.ID)+"=sick") {
			v.Endpoints[i].Health = resources.Unhealthy
		}
	}
	return v
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
	case "others":
		s.others = map[string]bool{}
		pairs(func(g, _ string) { s.others[g] = true })
	case "regression":
		g, why, _ := strings.Cut(arg, " ")
		s.regressions[groupNamed(g)] = why
	case "requests":
		if n, err := strconv.Atoi(arg); err == nil {
			s.requests = n
		} else {
			s.requests = -1
		}
	case "target":
		testkit.NoError(s.t, s.r.setTarget(s.now, s.view(arg)))
	case "nack":
		f := strings.Fields(arg)
		g := s.r.groups[slices.IndexFunc(s.r.groups, func(g *group) bool { return g.name == groupNamed(f[1]) })]
		n := refusal{node: f[0], text: "no", at: s.now}
		for _, name := range f[2:] {
			r := g.set.Get(resources.EndpointType, "cascade/m/s"+name[1:])
			if name == "r" {
				r = g.set.Get(resources.RouteType, resources.RouteName)
			}
			n.typ, n.versions = r.Type, append(n.versions, version{r.Name, r.Version})
		}
		s.refuse(g.name, n)
	case "report":
		s.report()
	case "wait":
		for end := s.now.Add(testkit.Must(time.ParseDuration(arg))); s.now.Before(end); {
			wake := s.r.nextWake(s.now)
			s.now = end
			if !wake.IsZero() && wake.Before(end) {
				s.now = wake
			}
			s.r.observe(s.now)
		}
	default:
		s.t.Fatalf("unknown command %q", command)
	}
	s.r.observe(s.now)
	return s.out.String()
}

// report prints the status of the rollout.
func (s *scenario) report() {
	st := s.r.status()
	fmt.Fprintf(&s.out, "target %d, rolling %d, stopped %v, blocked %q\n", st.target, st.rolling, st.Stopped, st.blocked)
	for _, g := range st.Groups {
		fmt.Fprintf(&s.out, "  %q %s: routes %d, nodes %d", g.Name, g.Phase, g.Epoch, g.Nodes)
		if !g.until.IsZero() {
			fmt.Fprintf(&s.out, ", until %s", g.until.UTC().Format("04:05.0"))
		}
		if len(g.fenced)+len(g.refusing) > 0 {
			fmt.Fprintf(&s.out, ", fenced %v, refusing %v", g.fenced, g.refusing)
		}
		s.out.WriteString("\n")
	}
}

// refuse makes a node refuse versions of one type.
func (s *scenario) refuse(group string, f refusal) {
	s.refusals[group] = slices.DeleteFunc(s.refusals[group], func(o refusal) bool { return o.node == f.node && o.typ == f.typ })
	s.refusals[group] = append(s.refusals[group], f)
}

// answer returns the observation of a group's nodes.
func (s *scenario) answer(q query) observation {
	if !q.set.Equal(s.applied[q.group]) {
		s.t.Errorf("group %q is observed for a set that is not applied", q.group)
	}
	f := observation{nodes: s.nodes[q.group], othersLate: s.others[q.group] && len(q.types) > 0, late: make(map[string]bool), behind: make(map[string]bool)}
	for _, id := range s.late[q.group] {
		id, routes := strings.CutSuffix(id, "@flip")
		f.behind[id] = true
		if len(q.types) > 0 && (!routes || q.types[0] == resources.RouteType) {
			f.late[id] = true
		}
	}
	s.refusals[q.group] = slices.DeleteFunc(s.refusals[q.group], func(o refusal) bool {
		return !f.behind[o.node] || !slices.ContainsFunc(o.versions, func(v version) bool { return v.isIn(q.set, o.typ) })
	})
	f.refusals = slices.SortedFunc(slices.Values(s.refusals[q.group]), func(a, b refusal) int { return strings.Compare(a.node+" "+a.typ, b.node+" "+b.typ) })
	return f
}

// Regression implements Monitor.
func (s *scenario) Regression(group string, _ time.Time) (bool, string) {
	return s.regressions[group] != "", s.regressions[group]
}

// ActiveRequests implements RequestCounter.
func (s *scenario) ActiveRequests(string, []string) (int, bool) {
	return max(s.requests, 0), s.requests >= 0
}

// Set implements Cache.
func (s *scenario) Set(name string, set resources.Set) {
	s.applied[name] = set
	g := s.r.groups[slices.IndexFunc(s.r.groups, func(g *group) bool { return g.name == name })]
	fmt.Fprintf(&s.out, "  %-4s %s: routes %s", cmp.Or(name, "rest"), g.phase, strings.TrimPrefix(string(set.Get(resources.RouteType, resources.RouteName).Body), "plan "))
	for k, r := range set.All(resources.EndpointType) {
		fmt.Fprintf(&s.out, ", e%d %s", k, strings.NewReplacer(":", "", " ", "").Replace(string(r.Body)))
	}
	s.out.WriteString("\n")
}

// Enabled implements slog.Handler.
func (s *scenario) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle implements slog.Handler.
func (s *scenario) Handle(_ context.Context, r slog.Record) error {
	attrs := make(map[string]string)
	r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value.String(); return true })
	fmt.Fprintf(&s.out, "%s:", strings.TrimSuffix(s.now.UTC().Format("04:05.0"), ".0"))
	for _, part := range [][2]string{{" plan %s:", attrs["epoch"]}, {" %s", r.Message}, {" %s", strings.Replace(attrs["group"], "default", "rest", 1)}, {", node %s", attrs["node"]}, {": %s", attrs["reason"]}} {
		if part[1] != "" {
			fmt.Fprintf(&s.out, part[0], part[1])
		}
	}
	s.out.WriteString("\n")
	return nil
}
