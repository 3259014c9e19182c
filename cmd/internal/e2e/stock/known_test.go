package stock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestKnownEngine compares what "cascade status" shows of an engine with how it was started. The fleet file states a
// larger KV cache than the engine has, which is a fault, and the engine's counts.
func TestKnownEngine(t *testing.T) {
	engines := newEngines(t, 1, options{connector: true, args: []string{"--stream-interval", "8",
		"--speculative-config", `{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}`}})
	f := newFleet(t, engines, func(c *config.Fleet) { c.Replicas[0].KVTokens, c.Replicas[0].Batch = 2*kvTokens, batch })
	if text, err := f.stream(completion{prompt: prompt(1, 40), output: 40}); err != nil {
		t.Fatalf("%v after %q", err, text)
	}
	var r control.Replica
	f.WaitFor("the status shows the engine", func() bool {
		r = harness.Find(f.status(), "r0")
		return r.Engine.TokensPerChunk > 1 && r.EngineLoad != nil && r.EngineLoad.Running == 0
	})
	e := r.Engine
	if !strings.HasPrefix(e.Version, "0.") || e.Context != context || e.BlockTokens != block || e.KVTokens != kvTokens ||
		e.Connector != "yes" || e.TokensPerChunk < 8 || e.DraftTokens != 3 || e.PromptDetails != "yes" {
		t.Errorf("engine %+v", e)
	}
	if l := *r.EngineLoad; l.Capacity != kvTokens || l.KVUsed > policies.Tokens(2*context) || l.Waiting != 0 {
		t.Errorf("load %+v", l)
	}
	for _, want := range []string{"engine " + e.Version, fmt.Sprintf("of %d", kvTokens), "KV connector: yes", "kv_tokens is"} {
		if got := f.command("status", "--wide"); !strings.Contains(got, want) {
			t.Errorf("the status lacks %q:\n%s", want, got)
		}
	}
}
