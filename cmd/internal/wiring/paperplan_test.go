package wiring

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// paperFleet is a fleet of eight replicas on two hosts with the paper's preset.
func paperFleet(t *testing.T, more string) *Fleet {
	var text strings.Builder
	text.WriteString("preset: paper\nmodels: [{name: m, context: 131072, profile: h200-llama-3.1-8b}]\nreplicas:\n")
	for i := range 8 {
		fmt.Fprintf(&text, "- {id: r%d, host: h%d, address: \"127.0.0.1:%d\", peer: \"127.0.0.1:%d\", engine: \"http://127.0.0.1:%d\"}\n", i, i%2, 9000+i, 9100+i, 8000+i)
	}
	c, err := config.Read(strings.NewReader(text.String() + more))
	testkit.NoError(t, err)
	f, err := Resolve(c, t.TempDir())
	testkit.NoError(t, err)
	return &f
}

// generated returns the lengths of requests that a generator draws.
func generated(t *testing.T, g trace.Generator) []trace.Request {
	g.Requests, g.Seed = 20_000, 3
	lengths, err := g.Generate()
	testkit.NoError(t, err)
	return lengths
}

// mix returns the lengths of one of the generators that are fitted to traces.
func mix(t *testing.T, name string) []trace.Request {
	g, ok := trace.Named(name)
	if !ok {
		t.Fatalf("no mix %q", name)
	}
	return generated(t, g)
}

// TestPaperKeepsPlan checks that the paper's preset keeps its plan while the requests stay the
// same: at most two changes in 30 periods.
func TestPaperKeepsPlan(t *testing.T) {
	for _, name := range []string{"chat", "conversation", "sharegpt"} {
		t.Run(name, func(t *testing.T) { keepsPlan(t, mix(t, name), 0.5) })
	}
}

func keepsPlan(t *testing.T, lengths []trace.Request, load float64) {
	f := paperFleet(t, "")
	v := newVirtualFleet(t, f, 1)
	v.run(lengths, rateFor(v, lengths, load), 30*f.Planner.Period)
	v.logChanges()
	if n := len(v.changes) - 1; n > 2 {
		t.Errorf("%d changes of plan after the first one, at a load of %v", n, load)
	}
}

func (v *virtualFleet) logChanges() {
	for _, c := range v.changes {
		v.t.Logf("%v: %s, %s", c.at.Round(time.Second), c.stages, c.reason)
	}
	v.t.Logf("boundaries refined %d times", v.refined)
}

// checkFirstPlanReturns checks that replicas which start one after another have the first plan
// once all are ready, though it was repaired meanwhile for those that were.
func checkFirstPlanReturns(t *testing.T, f *Fleet, first string) {
	v := newVirtualFleet(t, f, 1)
	for _, starting := range []int{6, 4, 2, 0} {
		for i, e := range v.engines {
			e.starting = i >= len(v.engines)-starting
		}
		v.idle(5 * f.Planner.Period)
		if merged := show(v.plan.Stages) != first; merged != (starting > 0) {
			t.Errorf("preset %s, %d replicas are starting: the plan is %s, the first one %s", f.Preset, starting, show(v.plan.Stages), first)
		}
	}
	if n := len(v.changes); n > 10 {
		t.Errorf("preset %s: %d plans for four sets of replicas: %v", f.Preset, n, v.changes)
	}
}

// TestMergedPlanBecomesWhole checks that a first plan which was merged, because replicas were not ready when traffic
// began, is whole again once they are, and so is a plan of which a stage lost its replicas for a while; and that it
// is then kept.
func TestMergedPlanBecomesWhole(t *testing.T) {
	requests := mix(t, "conversation")
	for i := range requests {
		requests[i].At = trace.NoArrival
	}
	for seed := range uint64(testkit.Size(1, 4)) {
		f := paperFleet(t, "")
		f.histories = map[string]policies.Workload{"m": testkit.Must(f.history(f.Models[0], requests))}
		v := newVirtualFleet(t, f, seed)
		stages := len(v.plan.Stages)
		// without starts all replicas but one anew: traffic goes on meanwhile.
		without := func(periods time.Duration) {
			for _, e := range v.engines {
				e.starting = e != v.engines[0]
			}
			v.run(requests, rateFor(v, requests, 0.05), periods*f.Planner.Period)
			if len(v.plan.Stages) >= stages {
				t.Fatalf("seed %d: with one replica the plan is %s", seed, show(v.plan.Stages))
			}
			for _, e := range v.engines {
				e.starting = false
			}
		}
		for _, when := range []string{"at the start", "later"} {
			without(3)
			v.run(requests, rateFor(v, requests, 0.25), 3*f.Planner.Period)
			if len(v.plan.Stages) < stages {
				t.Errorf("seed %d, %s: three periods after all replicas are ready the plan is %s, of %d stages before", seed, when, show(v.plan.Stages), stages)
			}
			before := len(v.changes)
			v.run(requests, rateFor(v, requests, 0.25), 5*f.Planner.Period)
			if n := len(v.changes) - before; n > 2 {
				t.Errorf("seed %d, %s: %d changes of plan in 5 periods of equal traffic", seed, when, n)
			}
		}
		v.logChanges()
	}
}

// TestFirstPlanOfHistory checks that the first plan is made for the requests of the model's
// history, if it has one, with times and without, and that it is the plan of the traffic.
func TestFirstPlanOfHistory(t *testing.T) {
	requests := mix(t, "sharegpt")
	lengths := filepath.Join(t.TempDir(), "lengths.csv")
	var text strings.Builder
	text.WriteString("arrival_ms,input_tokens,output_tokens\n")
	for _, r := range requests {
		fmt.Fprintf(&text, "-1,%d,%d\n", r.Input, r.Output)
	}
	writeFile(t, lengths, text.String())
	for _, preset := range []string{config.PresetPaper, config.PresetDefault} {
		f := paperFleet(t, "")
		f.Preset, f.Models[0].History = preset, lengths
		testkit.NoError(t, f.readHistories())
		first := newVirtualFleet(t, f, 1).changes
		if len(first) != 1 || !strings.Contains(first[0].stages, "|") {
			t.Fatalf("preset %s: the first plans are %v", preset, first)
		}
		checkFirstPlanReturns(t, f, first[0].stages)
		f.histories = nil
		if plain := newVirtualFleet(t, f, 1).changes; plain[0].stages != "8" {
			t.Errorf("preset %s, without history: %v", preset, plain)
		}
		if preset == config.PresetPaper {
			v := newVirtualFleet(t, f, 1)
			v.run(requests, rateFor(v, requests, untimedLoad), 2*f.Planner.Period)
			if then := v.changes[len(v.changes)-1].stages; then != first[0].stages {
				t.Errorf("planned %s for the history, %s for its requests", first[0].stages, then)
			}
		}
	}
	// The same requests at the same rate, with times.
	f := paperFleet(t, "")
	v := newVirtualFleet(t, f, 1)
	timed, err := trace.Shape{Rate: rateFor(v, requests, untimedLoad), Seed: 2}.Apply(requests)
	testkit.NoError(t, err)
	a, err := f.history(f.Models[0], timed)
	testkit.NoError(t, err)
	for i := range requests {
		requests[i].At = trace.NoArrival
	}
	b, err := f.history(f.Models[0], requests)
	testkit.NoError(t, err)
	for i := range a.Snapshot {
		if x, y := a.Snapshot[i].N, b.Snapshot[i].N; x > 1.1*y || y > 1.1*x {
			t.Errorf("bucket %d: %.4g requests in flight with times, %.4g without", i, x, y)
		}
	}
	f.Models[0].History = "none.csv"
	if err := f.readHistories(); err == nil || !strings.Contains(err.Error(), "models[0].history") {
		t.Errorf("a file that does not exist: %v", err)
	}
}
