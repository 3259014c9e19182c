package control

import (
	"bufio"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/console"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// oneMix is a mix of equal requests.
type oneMix struct{}

func (oneMix) Names() []string { return []string{"short"} }

func (oneMix) Flow(_ string, _ policies.Tokens, edges []policies.Tokens) (policies.Flow, error) {
	f := policies.NewFlow(edges)
	b := policies.BucketOf(edges, 200)
	f.Arrivals[b], f.Tokens[b], f.Reads[b], f.Prefill[b], f.Prefill2[b], f.Weight[b] = 1, 100, 25_000, 200, 40_000, 1
	return f, nil
}

// consoleView is a view with its status.
type consoleView struct {
	console.View
	Status Status `json:"status"`
}

// readViews opens the console's events and returns a function that returns the next view.
func readViews(t *testing.T, c *runningControl) func() consoleView {
	t.Helper()
	resp, err := http.Get("http://" + c.AdminAddr().String() + "/console/events")
	testkit.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	return func() (v consoleView) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			testkit.NoError(t, err)
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				testkit.NoError(t, json.Unmarshal([]byte(data), &v))
				return v
			}
		}
	}
}

// TestConsole checks what the console says of a running fleet: well, then a replica that does not
// work with what to do about it, and the traffic by length.
func TestConsole(t *testing.T) {
	f := newFakeFleet(t, 3)
	rules := fastRules()
	rules.Seen = 1 << 40 // one stage
	c := startControl(t, Config{Rules: rules, Replicas: f.list, Mixes: oneMix{}})
	f.setReports(skewReport)
	f.startReports(t, c)
	waitFor(t, c, "all reports", func(s Status) bool {
		return len(s.Faults) == 0 && arrivalRate(c.fleet.Snapshot().Models[0].Flow) > 12 && !slices.ContainsFunc(s.Models[0].Stages[0].Replicas, func(r Replica) bool { return r.ReportAge == nil })
	})
	code, page := get(t, c, "/")
	if code != http.StatusOK || !strings.Contains(page, "<title>Cascade</title>") {
		t.Fatalf("/: %d", code)
	}
	next := readViews(t, c)
	v := next()
	if st := v.Status; len(st.Faults) > 0 || len(st.Models) != 1 || len(v.Models) != 1 || len(st.Models[0].Stages[0].Replicas) != 3 || st.Epoch == 0 || !slices.Equal(v.Mixes, []string{"short"}) {
		t.Errorf("view %+v", v)
	}
	m := v.Models[0]
	rate, at := 0.0, map[policies.Tokens]float64{}
	for _, b := range m.Buckets {
		rate += b.Arrivals
		at[b.Low] = b.Arrivals
	}
	if rate < 12 || at[192] < 11.9 {
		t.Errorf("%v requests/s, by length %v", v.Status.Models[0].Rate, m.Buckets)
	}
	if r := v.Status.Models[0].Stages[0].Replicas[0]; r.Health != "healthy" || r.Capacity != 400_000 || r.ReportAge == nil {
		t.Errorf("replica %+v", r)
	}

	f.replicas[1].setReport(func(m *api.LoadReport) { m.EngineReady = false })
	waitFor(t, c, "r1 named", func(s Status) bool { return hasFault(s, FaultReplica, "r1") })
	for v = next(); len(v.Status.Faults) == 0; v = next() {
	}
	if list, a := v.Status.Faults, v.Advice[FaultReplica]; len(list) != 1 || list[0].Object != "r1" || list[0].Text == "" || a.Action == "" || a.Meaning == "" {
		t.Errorf("faults %+v, advice %+v", list, v.Advice)
	}
	if r := v.Status.Models[0].Stages[0].Replicas[1]; r.Health != "unhealthy" || r.HealthReason == "" {
		t.Errorf("replica %+v", r)
	}
}

// TestConsoleWhatIf checks that a what-if is the proposal of the planner for that many replicas, that
// traffic and bound change it, and that the present plan has its price.
func TestConsoleWhatIf(t *testing.T) {
	f := newFakeFleet(t, 3)
	rules := fastRules()
	rules.Seen = 1 << 40
	c := startControl(t, Config{Rules: rules, Replicas: f.list, Mixes: oneMix{}})
	ask := func(query string) (a console.Answer) {
		t.Helper()
		code, body := get(t, c, "/console/whatif?"+query)
		if code != http.StatusOK {
			t.Fatalf("%s: %d %s", query, code, body)
		}
		testkit.NoError(t, json.Unmarshal([]byte(body), &a))
		return a
	}
	refused := func(query, field, text string) {
		t.Helper()
		code, body := get(t, c, "/console/whatif?"+query)
		var e struct{ Field, Error string }
		testkit.NoError(t, json.Unmarshal([]byte(body), &e))
		if code != http.StatusUnprocessableEntity || e.Field != field || !strings.Contains(e.Error, text) {
			t.Errorf("%s: %d %s, want the field %q and %q", query, code, body, field, text)
		}
	}
	f.startReports(t, c)
	waitFor(t, c, "all reports", func(s Status) bool { return s.Epoch > 0 && s.Models[0].Stages[0].Replicas[2].ReportAge != nil })
	refused("", "mix", "choose one of short")
	refused("mix=short", "rate", "no traffic has been counted yet")
	if a := ask("mix=short&rate=5"); len(a.Stages) != 1 || a.Rate != 5 || a.Present != nil || a.Traffic != "mix short" {
		t.Errorf("mix: %+v", a)
	}

	f.setReports(skewReport)
	waitFor(t, c, "the traffic", func(Status) bool { return arrivalRate(c.fleet.Snapshot().Models[0].Flow) > 12.4 })
	testkit.WaitFor(t, "a planning period with it", func() bool {
		w := c.fleet.Snapshot().Models[0].Workload
		return arrivalRate(w.Flow) > 12.4
	})
	w := c.fleet.Snapshot().Models[0].Workload
	w.Replicas = 12
	want := testkit.Must(partition.Exact{Slack: partition.DefaultSlack}.Partition(w))
	got := ask("replicas=12")
	if len(got.Stages) != len(want.Counts) || len(want.Counts) < 2 || math.Abs(got.Cost/want.Cost-1) > 1e-3 || got.Replicas != 12 || !got.Exact {
		t.Errorf("12 replicas: %+v, want %+v", got, want)
	}
	for i, st := range got.Stages {
		if st.Replicas != want.Counts[i] || i > 0 && st.Low != want.Cuts[i-1] || math.Abs(st.Iteration/want.Iterations[i]-1) > 1e-3 || !(st.Busy > 0 && st.Busy < 1) {
			t.Errorf("stage %+v, want %+v", st, want)
		}
	}
	if got.OneStage == nil || *got.OneStage <= got.Cost || got.Present == nil || *got.Present <= got.Cost {
		t.Errorf("costs %v, in one stage %v, at present %v", got.Cost, got.OneStage, got.Present)
	}
	if double := ask("replicas=12&rate=" + strconv.FormatFloat(2*got.Rate, 'g', -1, 64)); double.Cost < 1.9*got.Cost {
		t.Errorf("twice the traffic costs %v, and once %v", double.Cost, got.Cost)
	}
	refused("replicas=12&iteration_ms=1", "iteration_ms", "12 replicas cannot carry")
	refused("replicas=1&rate=100000", "replicas", "1 cannot carry")
	refused("mix=long", "mix", "must be empty or one of short")
	refused("model=n", "model", "unknown")
	if a := ask("model=m"); a.Replicas != 3 {
		t.Errorf("as now: %+v", a)
	}
}

// TestConsolePaper checks that a what-if says why it cannot ask the paper's policy.
func TestConsolePaper(t *testing.T) {
	f := newFakeFleet(t, 2)
	rules := fastRules()
	rules.Policy = fleet.PolicyPaper
	c := startControl(t, Config{Rules: rules, Replicas: f.list, Mixes: oneMix{}})
	f.startReports(t, c)
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch > 0 })
	if code, body := get(t, c, "/console/whatif?mix=short&rate=5"); code != http.StatusUnprocessableEntity || !strings.Contains(body, "cascade plan --policy paper") {
		t.Errorf("%d %s", code, body)
	}
}

// TestConsoleMoves checks which migrations are counted between stages.
func TestConsoleMoves(t *testing.T) {
	now := time.Unix(1000, 0)
	move := func(from, to, state string, ago time.Duration, stall float64) loadreport.Migration {
		return loadreport.Migration{From: policies.ReplicaID(from), To: policies.ReplicaID(to), State: state, Reported: now.Add(-ago), Stall: stall, Method: "live", Transport: "shm"}
	}
	recent := []loadreport.Migration{
		move("a", "b", "done", 0, 0.004), move("a", "b", "done", time.Second, 0.002), move("b", "a", "done", time.Second, 0.003),
		move("a", "b", "aborted", 0, 9), move("a", "b", "copying", 0, 9), move("a", "b", "done", time.Minute, 9), move("a", "gone", "done", 0, 0.001), move("a", "c", "done", 0, 0.005),
	}
	m := Model{Stages: []Stage{{Replicas: []Replica{{ID: "a"}}}, {Replicas: []Replica{{ID: "b"}}}}, Unassigned: []Replica{{ID: "c"}}}
	if got, want := movesOf(m, recent, now), []console.Move{{From: 0, To: -1, Count: 1}, {From: 0, To: 1, Count: 2}, {From: 1, To: 0, Count: 1}}; !slices.Equal(got, want) {
		t.Errorf("moves %v, want %v", got, want)
	}
	pull := loadreport.Migration{Cause: loadreport.CausePrefix, From: "a", To: "c", State: loadreport.MigrationDone, Reported: now}
	tried := pull
	tried.State = loadreport.MigrationAborted
	recent = append([]loadreport.Migration{pull, tried}, recent...) // no request moves by them
	if got := movesOf(m, recent, now); !slices.Equal(got, movesOf(m, recent[2:], now)) {
		t.Errorf("with prefix pulls: moves %v", got)
	}
	g := migrationsOf(recent, 3, now)
	if g.Copied != 1 || g.CopiesTried != 2 || slices.ContainsFunc(g.Latest, func(x loadreport.Migration) bool { return x.Cause == loadreport.CausePrefix }) {
		t.Errorf("prefix pulls are migrations: %+v", g)
	}
	if g.Running != 3 || g.Done != 5 || g.Aborted != 1 || g.StallP50 != 0.003 || g.StallP99 != 0.005 || len(g.Latest) != len(recent)-2 {
		t.Errorf("migrations %+v", g)
	}
	if n := len(migrationsOf(slices.Repeat(recent, 20), 0, now).Latest); n != consoleMigrations {
		t.Errorf("%d migrations are listed", n)
	}
}

// TestConsoleSlots checks the phases of a slot, and that hosts with a problem come first.
func TestConsoleSlots(t *testing.T) {
	host := func(name string, active lifecycle.Generation, modules ...lifecycle.Status) PolicyNode {
		return PolicyNode{Node: name, SlotStatus: lifecycle.SlotStatus{Active: active, Modules: modules}}
	}
	refusing := host("z", 0)
	refusing.Refused = "no fuel"
	s := PolicySlot{
		Slot: lifecycle.Place, Stable: &PolicyModule{Generation: 4, Name: "mine", Version: "1.0.0"},
		Candidate: &PolicyCandidate{PolicyModule: PolicyModule{Generation: 5, Name: "mine", Version: "1.1.0"}, Goal: lifecycle.ToCanary, Permille: 10},
		Nodes: []PolicyNode{host("a", 4, lifecycle.Status{Generation: 5, Phase: lifecycle.Canary}), host("b", 5, lifecycle.Status{Generation: 5, Phase: lifecycle.Active}),
			host("c", 4, lifecycle.Status{Generation: 5, Phase: lifecycle.Rejected, Reason: "worse"}), host("d", 4), refusing},
	}
	got := slotsOf([]PolicySlot{s})[0]
	if got.Stable != "mine 1.0.0, generation 4" || got.Candidate != "mine 1.1.0, generation 5, to canary 10 ‰" || got.Refusing != 1 || got.Nodes != 5 {
		t.Errorf("slot %+v", got)
	}
	if h := got.Hosts; h[0].Host != "c" || h[0].Problem != "worse" || h[1].Host != "z" || h[1].Problem != "no fuel" || h[2].Problem != "" {
		t.Errorf("hosts %+v", h)
	}
	if !slices.Contains(got.Phases, console.SlotPhase{Module: "generation 5", Phase: "canary", Hosts: 1}) || len(got.Phases) != 5 {
		t.Errorf("phases %+v", got.Phases)
	}
	s.Nodes = slices.Repeat(s.Nodes, 20)
	if got := slotsOf([]PolicySlot{s})[0]; len(got.Hosts) != consoleHosts || got.Nodes != 100 {
		t.Errorf("%d of %d hosts are listed", len(got.Hosts), got.Nodes)
	}
}

// TestConsoleShowsLess checks that events carry neither former plans nor transports, which the status keeps.
func TestConsoleShowsLess(t *testing.T) {
	r := []Replica{{ID: "a", Transports: []Transport{{Name: "shm"}}}}
	st := Status{History: []Change{{Epoch: 1}}, Models: []Model{{Stages: []Stage{{Replicas: r}, {Replicas: []Replica{}}}, Unassigned: slices.Clone(r)}}}
	text := string(testkit.Must(json.Marshal(shown(st))))
	if strings.Contains(text, "shm") || !strings.Contains(text, `"history":null`) || !strings.Contains(text, `"replicas":[]`) {
		t.Error(text)
	}
	if text := string(testkit.Must(json.Marshal(st))); strings.Count(text, "shm") != 2 || len(st.History) != 1 {
		t.Errorf("the status has changed: %s", text)
	}
}

// TestConsoleDecisions checks the latest decisions.
func TestConsoleDecisions(t *testing.T) {
	until := time.Unix(9, 0)
	change := planner.Change{Epoch: 1, Decision: planner.Kept, Stages: plantest.Parse("a b | c").Stages}
	kept := decisionOf(fleetstate.Change{Change: change, Times: 3, Until: until})
	all := []Decision{{Epoch: 1, Decision: "adopted", Gain: 0.123456}, kept}
	if stages := string(testkit.Must(json.Marshal(kept.Stages[0]))); stages != `{"name":"s0","low":0,"high":100,"replicas":[{"id":"a"},{"id":"b"}]}` {
		t.Error(stages)
	}
	d := decisionsOf(all)
	if len(d) != 2 || d[0].Decision != "kept" || !d[0].Time.Equal(until) || d[0].Stages[0].Replicas != 2 || d[1].Gain != 0.1235 {
		t.Errorf("decisions %+v", d)
	}
	if n := len(decisionsOf(slices.Repeat(all, 40))); n != consoleHistory {
		t.Errorf("%d decisions are listed", n)
	}
}

// TestAdviceIsComplete checks that the console has advice for every kind of fault that is declared.
func TestAdviceIsComplete(t *testing.T) {
	kinds := 0
	for file, prefix := range map[string]string{"faults.go": "Fault", filepath.Join("..", "loadreport", "problem.go"): "Problem"} {
		parsed := testkit.Must(parser.ParseFile(token.NewFileSet(), file, nil, 0))
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !strings.HasPrefix(strings.ToLower(spec.Names[0].Name), strings.ToLower(prefix)) || spec.Names[0].Name == "ProblemsField" {
				return true
			}
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				kinds++
				a, ok := console.AdviceFor(testkit.Must(strconv.Unquote(lit.Value)))
				if !ok || a.Title == "" || a.Meaning == "" || a.Action == "" {
					t.Errorf("no advice for %s", lit.Value)
				}
			}
			return true
		})
	}
	if kinds < 17 {
		t.Errorf("found only %d kinds: the test looks in the wrong place", kinds)
	}
}

func TestRounded(t *testing.T) {
	for x, want := range map[float64]float64{0: 0, 1.23456: 1.235, -1.23456: -1.235, 123456: 123500, 0.000123456: 0.0001235, math.Inf(1): 0} {
		if got := rounded(x); got != want {
			t.Errorf("%v: %v, want %v", x, got, want)
		}
	}
	if got := rounded(math.NaN()); got != 0 {
		t.Errorf("NaN: %v", got)
	}
}

// TestConsoleEndsWithControl checks that a viewer's response ends when the control plane stops, and
// that it does not delay the end.
func TestConsoleEndsWithControl(t *testing.T) {
	f := newFakeFleet(t, 1)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Stop: time.Hour})
	resp, err := http.Get("http://" + c.AdminAddr().String() + "/console/events")
	testkit.NoError(t, err)
	defer resp.Body.Close()
	testkit.Must(resp.Body.Read(make([]byte, 10)))
	c.stop()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("the response is cut: %v", err)
	}
}
