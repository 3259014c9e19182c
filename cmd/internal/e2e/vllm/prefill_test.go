package vllm

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clienttest"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// prefillMoves is how many requests must move with their first token.
const prefillMoves = 10

// TestPrefillReplica gives one of two unmodified engines the role prefill. Long prompts are computed there, and the
// requests are handed over to the other engine, which computes nothing of them. What clients read is the engine's own
// answer.
func TestPrefillReplica(t *testing.T) {
	engines := newEngines(t, 2, options{connector: true})
	f := newFleet(t, engines, func(c *config.Fleet) { c.Replicas[0].Role = config.RolePrefill })
	moved := func() (n int) {
		for _, m := range f.migrations() {
			if m.Cause == "prefill" && m.State == "done" {
				if n++; m.Method != "handoff" {
					t.Errorf("a request left the prefill replica by %s", m.Method)
				}
			}
		}
		return n
	}
	computed := func() float64 {
		return engines[1].counter(t, "vllm:prompt_tokens_by_source_total", `source="local_compute"`)
	}
	done := 0
	for i := 0; done < prefillMoves; i++ {
		if i == 4*prefillMoves {
			t.Fatalf("%d of %d requests have moved: %+v", done, i, clienttest.Replicas(f.status()))
		}
		c := completion{prompt: prompt(500+i, 6000), output: 400}
		before, movesBefore := computed(), moved()
		got, err := f.stream(c.body(map[string]any{"stream": true}), nil)
		testkit.NoError(t, err)
		if want := engines[0].text(t, c); got != want {
			t.Errorf("request %d: the client reads\n%q, want\n%q", i, got, want)
		}
		left := testkit.WaitForValue(t, "the end of its moves", func() int {
			for _, m := range f.migrations() {
				if m.State != "done" && m.State != "aborted" {
					return -1
				}
			}
			return moved() - movesBefore
		}, func(n int) bool { return n >= 0 })
		if left == 0 {
			continue // it began at the other replica, or ended before it could move
		}
		done++
		if n := computed() - before; n != 0 {
			t.Errorf("request %d: the replica that it moved to has computed %v tokens of its prompt", i, n)
		}
	}
	f.tally()
}
