package stock

import (
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// prefillFetches is how many prompts must come from the prefill replica.
const prefillFetches = 10

// TestPrefillReplica gives one of two unmodified engines the role prefill. Long prompts are computed there, by requests
// for one token, and their KV is fetched by the other engine, which computes less than a block of them. What clients
// read is the engine's own answer.
func TestPrefillReplica(t *testing.T) {
	engines := newEngines(t, 2, options{connector: true})
	f := newFleet(t, engines, func(c *config.Fleet) { c.Replicas[0].Role = config.RolePrefill })
	source := func(engine int, name string) float64 {
		return engines[engine].counter(t, "vllm:prompt_tokens_by_source_total", fmt.Sprintf("source=%q", name))
	}
	done := 0
	for i := 0; done < prefillFetches; i++ {
		if i == 4*prefillFetches {
			t.Fatalf("%d of %d prompts were fetched: %+v", done, i, harness.Replicas(f.status()))
		}
		c := completion{prompt: prompt(500+i, 6000), output: 400}
		fetched, computed, generated := source(1, "external_kv_transfer"), source(1, "local_compute"), engines[0].counter(t, "vllm:generation_tokens_total", "")
		got, err := f.stream(c)
		testkit.NoError(t, err)
		// Counters appear a moment after the last chunk.
		left := testkit.WaitForValue(t, "the engine's counters", func() float64 {
			return source(1, "external_kv_transfer") + source(1, "local_compute") - fetched - computed
		}, func(n float64) bool { return n > 0 })
		byPrefill := engines[0].counter(t, "vllm:generation_tokens_total", "") - generated
		if want := engines[0].text(t, c); got != want {
			t.Errorf("request %d: the client reads\n%q, want\n%q", i, got, want)
		}
		if source(1, "external_kv_transfer") == fetched {
			t.Logf("request %d: its prompt was not fetched, of %v tokens", i, left)
			continue
		}
		done++
		// The token after the prompt is sampled from its last block, which is computed again.
		if n := source(1, "local_compute") - computed; n > maxRecomputed || byPrefill > 1 {
			t.Errorf("request %d: the replica that answers has computed %v tokens of its prompt, and the prefill replica has generated %v", i, n, byPrefill)
		}
	}
}

// maxRecomputed is how many tokens of a prompt that it has fetched an engine may compute: the last block, not full
// perhaps, and one.
const maxRecomputed = 64
