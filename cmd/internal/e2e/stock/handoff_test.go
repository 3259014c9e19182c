package stock

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// handoffs is how many moves testLengths must see with NIXL.
const handoffs = 30

// lease is for how long the engines of TestHandoffs keep KV, in seconds: shorter than by default, so that the tests
// need not wait for its end for long. The patience of these front ends is such that a target has half as long at most.
const lease = 10

// handoffKV is what these engines' KV caches hold, in tokens, and handoffBatch how many sequences they run at once.
const handoffKV, handoffBatch = 16384, 32

// TestHandoffs hands running streams over between two unmodified engines: what the client reads is the engine's own
// answer, and the target computes nothing of it. cached_tokens are no proof: engines state them also after a fetch
// that failed.
func TestHandoffs(t *testing.T) {
	engines := newEngines(t, 2, options{connector: true, lease: lease, model: thinkingModel(t), args: []string{"--reasoning-parser", "deepseek_v3", "--num-gpu-blocks-override", fmt.Sprint(handoffKV / block), "--max-num-seqs", fmt.Sprint(handoffBatch)}})
	urls := [2]string{engines[0].URL, engines[1].URL}
	t.Run("lengths", func(t *testing.T) { testLengths(t, urls, handoffs, patient) })
	t.Run("block edges", func(t *testing.T) { handofftest.PlayBlockEdges(t, model, urls, block, patient) })
	t.Run("rescues", func(t *testing.T) { handofftest.PlayRescues(t, model, urls, 12, patient) })
	t.Run("prefix pulls", func(t *testing.T) { handofftest.PlayPrefixPulls(t, model, urls, patient) })
	t.Run("reasoning", func(t *testing.T) { testReasoning(t, urls) })
	t.Run("Envoy", func(t *testing.T) { testThroughEnvoy(t, engines) })
	t.Run("overload", func(t *testing.T) {
		handofftest.PlayOverload(t, model, urls, handofftest.Room{KV: handoffKV, Context: context, Batch: handoffBatch}, 3, patient)
	})
	t.Run("late fetch", func(t *testing.T) { testLateFetch(t, engines) })
	t.Run("faults", func(t *testing.T) { testFaults(t, engines) }) // the last one: it kills an engine
}

// patient lets moves take long: two engines with NIXL fill two cores.
func patient(c *frontend.Config) {
	c.MigrationTimeout, c.HealthTimeout, c.HangTimeout, c.Cost.D0 = 2*lease*time.Second, time.Minute, time.Minute, 1
}

// testLengths hands streams of 100, 1,000 and 3,000 tokens over, so many times, in both directions, completions and
// chats.
func testLengths(t *testing.T, urls [2]string, handoffs int, edit func(*frontend.Config)) {
	p := handofftest.New(t, model, urls, edit)
	rng := rand.New(rand.NewPCG(1, 2))
	stalls := map[string][]time.Duration{}
	for i, done := 0, 0; done < handoffs; i++ {
		if i == 3*handoffs {
			t.Fatalf("%d of %d moves were handoffs\n%s", done, i, &p.Log)
		}
		n := []int{100, 1000, 3000}[i%3]
		s := handofftest.Stream{At: i / 3 % 2, Output: 4000 - n, Moves: []int{20 + rng.IntN(block)}, After: 60}
		if i/6%2 == 0 {
			s.Prompt = make([]uint32, n)
			for k := range s.Prompt {
				s.Prompt[k] = 5 + rng.Uint32N(1000)
			}
		} else {
			s.Text = prompt(i, 2*n)
		}
		target := 1 - s.At
		before := p.Sources(target)
		moves := p.Play(s)
		if len(moves) == 0 || moves[0].Err != nil {
			t.Logf("not moved: %+v", moves)
			continue
		}
		way := "reprompt"
		if moves[0].Handoff {
			way = "handoff"
			done++
			got := testkit.WaitForValue(t, "the target's counters", func() handofftest.Sources { return p.Sources(target).Sub(before) },
				func(s handofftest.Sources) bool { return s.Computed+s.Cached+s.Fetched >= float64(moves[0].Length) })
			if got.Computed != 0 || got.Fetched == 0 {
				t.Errorf("%d tokens: the target got %+v", moves[0].Length, got)
			}
		}
		kind := fmt.Sprintf("%s of %d", way, n)
		stalls[kind] = append(stalls[kind], moves[0].Stall)
	}
	for _, kind := range slices.Sorted(maps.Keys(stalls)) {
		slices.Sort(stalls[kind])
		t.Logf("%s tokens: %d moves, the client waited %v at least, %v at the median, %v at most", kind, len(stalls[kind]), stalls[kind][0], stalls[kind][len(stalls[kind])/2], stalls[kind][len(stalls[kind])-1])
	}
}
