package inprocess

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// mixedLengths are four in five short requests and one in five with long prompts.
var mixedLengths = trace.Generator{Name: "mixed", Requests: 400, Rate: 1, Seed: 3, Classes: []trace.Class{
	{Share: 0.8, Input: trace.Range{Min: 30, Max: 800}, Output: trace.Range{Min: 8, Max: 100}, Lengths: []trace.Lognormal{{Weight: 1, Input: 5, Output: 3.7, InputSD: 0.7, OutputSD: 0.6}}},
	{Share: 0.2, Input: trace.Range{Min: 1000, Max: 4000}, Output: trace.Range{Min: 8, Max: 100}, Lengths: []trace.Lognormal{{Weight: 1, Input: 7.7, Output: 3.7, InputSD: 0.3, OutputSD: 0.6}}},
}}

// TestPaperKeepsPlan checks that the planner of preset paper keeps its stages while the requests stay
// the same: there is at most one other plan in several periods, though the stages' boundaries are refined.
// Requests migrate when they outgrow their stage, and none fails. The first stages are those for the
// requests' lengths in models.history, or those that the planner makes from the requests that it sees.
func TestPaperKeepsPlan(t *testing.T) {
	testkit.SkipSlow(t)
	lengths, err := mixedLengths.Generate()
	testkit.NoError(t, err)
	t.Run("first plan from history", func(t *testing.T) {
		planes(t, onProxy, func(t *testing.T, envoy string) { keepsPlan(t, envoy, lengths, writeHistory(t, lengths)) })
	})
	t.Run("no history", func(t *testing.T) {
		planes(t, onProxy, func(t *testing.T, envoy string) { keepsPlan(t, envoy, lengths, "") })
	})
}

func keepsPlan(t *testing.T, envoy string, lengths []trace.Request, history string) {
	const period, periods = 16 * time.Second, 10 // at speed 1; as many requests as show which plan is better
	r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 4, edit: func(f *config.Fleet) {
		f.Preset, f.Speed, f.Migration, f.Planner = config.PresetPaper, 4, config.Migration{}, config.Planner{Period: period}
		f.Models[0].Profile, f.Models[0].History = "testdata/longcontext.json", history
	}})
	staged := func(s control.Status) bool { return len(s.Models[0].Stages) >= 2 && inUse(s, s.Epoch) }
	first := control.Status{}
	if history != "" {
		first = r.waitForStatus("the first plan has stages", staged)
	}
	load := r.NewLoad(harness.LoadConfig{Workers: 48, Body: func(_ int, rng *rand.Rand) []byte {
		q := lengths[rng.IntN(len(lengths))]
		return harness.Prompt(0, 4*int(q.Input), int(q.Output)) // four bytes are a token
	}})
	if history == "" {
		first = r.waitForStatus("the planner has made stages", staged)
	}
	before := r.decisions()
	r.WaitFor("the planner has decided in several periods", func() bool { return r.decisions().all-before.all >= periods })
	r.WaitFor("a request has outgrown its stage", r.migrated)
	load.Stop()
	load.Report()
	r.tally()
	after := r.server.Load().Status()
	t.Logf("first %sthen %s%d plans refined or repaired", summarize(first), summarize(after), after.Epoch-first.Epoch)
	if n := r.decisions().adopted - before.adopted; n > 1 || len(after.Models[0].Stages) < 2 {
		t.Errorf("%d other plans were adopted in %d periods", n, periods)
	}
}

// decisions counts what the planner has decided, once a period, and how often that was another plan.
type decisions struct{ all, adopted int }

func (r *fleetHarness) decisions() (n decisions) {
	for _, d := range r.server.Load().PlanHistory(llm).Decisions {
		switch d.Decision {
		case "kept", "held off":
			n.all += max(d.Times, 1)
		case "adopted", "rolled back":
			n.all, n.adopted = n.all+1, n.adopted+1
		}
	}
	return n
}

// writeHistory writes lengths without times to a file for models.history.
func writeHistory(t *testing.T, lengths []trace.Request) (path string) {
	var text strings.Builder
	text.WriteString("arrival_ms,input_tokens,output_tokens\n")
	for _, q := range lengths {
		fmt.Fprintf(&text, "-1,%d,%d\n", q.Input, q.Output)
	}
	path = filepath.Join(t.TempDir(), "history.csv")
	testkit.NoError(t, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}
