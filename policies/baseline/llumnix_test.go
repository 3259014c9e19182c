package baseline_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
)

// TestLlumnixPairs compares with the definition on random fleets: those below the threshold in rising
// order of freeness meet those above it in falling order.
func TestLlumnixPairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	found, drained := 0, 0
	for range 3000 {
		replicas := make([]baseline.Replica, 1+rng.IntN(9))
		type ranked struct {
			at   int
			free float64
		}
		var sources, targets []ranked
		for i := range replicas {
			r := baseline.Replica{Requests: rng.IntN(20), Load: policies.Tokens(rng.IntN(1100)), Capacity: 1000, Down: rng.IntN(6) == 0}
			if r.Requests == 0 {
				r.Load = 0
			}
			replicas[i] = r
			switch free := float64(r.Capacity-r.Load) / float64(r.Requests); {
			case r.Down:
				if r.Requests > 0 {
					sources = append(sources, ranked{i, -1e9})
				}
			case r.Requests == 0:
				targets = append(targets, ranked{i, 1e9})
			case free < 48:
				sources = append(sources, ranked{i, float64(int(free))})
			case free >= 49:
				targets = append(targets, ranked{i, float64(int(free))})
			}
		}
		slices.SortStableFunc(sources, func(a, b ranked) int { return cmp.Compare(a.free, b.free) })
		slices.SortStableFunc(targets, func(a, b ranked) int { return cmp.Compare(b.free, a.free) })
		var want []baseline.Pair
		for i := range min(len(sources), len(targets)) {
			want = append(want, baseline.Pair{From: sources[i].at, To: targets[i].at})
		}
		got := baseline.Llumnix{}.Rebalance(replicas)
		if !slices.Equal(got, want) {
			t.Fatalf("%+v: %v, want %v", replicas, got, want)
		}
		for _, p := range got {
			found++
			if replicas[p.From].Down {
				drained++
			}
		}
	}
	if found < 1000 || drained < 100 {
		t.Errorf("%d pairs, %d of them drain: the fleets are too easy", found, drained)
	}
}

// TestLlumnixBalances moves requests of 100 tokens as the pairs say: the loads come as close as one
// request lets them, and then no pair is left.
func TestLlumnixBalances(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	p := baseline.Llumnix{Balanced: true}
	for range 200 {
		replicas := make([]baseline.Replica, 2+rng.IntN(6))
		for i := range replicas {
			n := rng.IntN(30)
			replicas[i] = baseline.Replica{Requests: n, Load: policies.Tokens(100 * n), Capacity: 10_000}
		}
		for round := 0; ; round++ {
			pairs := p.Rebalance(replicas)
			if len(pairs) == 0 {
				break
			}
			if round > 200 {
				t.Fatalf("it does not come to rest: %+v", replicas)
			}
			for _, pair := range pairs {
				from, to := &replicas[pair.From], &replicas[pair.To]
				from.Requests, from.Load = from.Requests-1, from.Load-100
				to.Requests, to.Load = to.Requests+1, to.Load+100
			}
		}
		least, most := policies.Unbounded, policies.Tokens(0)
		for _, r := range replicas {
			least, most = min(least, r.Load), max(most, r.Load)
		}
		if most-least > 200 {
			t.Errorf("%+v: loads from %d to %d", replicas, least, most)
		}
	}
}

// TestLlumnixChoices checks where requests start and which one leaves.
func TestLlumnixChoices(t *testing.T) {
	fleet := []baseline.Replica{
		{Requests: 2, Load: 100, Capacity: 1000}, // 450 tokens for each
		{Requests: 1, Load: 400, Capacity: 1000}, // 600
		{Requests: 9, Load: 90, Capacity: 1000},  // 101
	}
	if got := (baseline.Llumnix{}).Route(baseline.Request{}, fleet, nil); got != 1 {
		t.Errorf("a request starts at %d, want the freest, 1", got)
	}
	fleet[0] = baseline.Replica{Capacity: 1000}
	if got := (baseline.Llumnix{}).Route(baseline.Request{}, fleet, nil); got != 0 {
		t.Errorf("a request starts at %d, want the idle one", got)
	}
	if got := (baseline.Llumnix{}).Choose([]policies.Tokens{7, 3, 9, 3}); got != 1 {
		t.Errorf("request %d leaves, want the first of the shortest", got)
	}
	if got := (baseline.Llumnix{}).Choose(nil); got != -1 {
		t.Errorf("request %d of none leaves", got)
	}
}

// TestPrefillDecode checks both choices of a split fleet, and that no replica is left idle by a fleet
// of two.
func TestPrefillDecode(t *testing.T) {
	p := baseline.PrefillDecode{}
	fleet := []baseline.Replica{{Load: 50}, {Load: 40, Down: true}, {Load: 45, Requests: 9}}
	if got := p.Route(baseline.Request{Input: 5}, fleet, nil); got != 2 {
		t.Errorf("the prompt goes to %d, want the shortest queue", got)
	}
	if got := p.RouteDecode(100, fleet); got != 2 {
		t.Errorf("it goes on at %d, want the least load", got)
	}
	if got := p.RouteDecode(100, []baseline.Replica{{Down: true}}); got != -1 {
		t.Errorf("it goes on at %d, though all are down", got)
	}
	for fleet, want := range map[int]int{2: 1, 3: 1, 8: 4} {
		if got := baseline.DefaultPrefillReplicas(fleet); got != want {
			t.Errorf("%d of %d replicas compute prompts, want %d", got, fleet, want)
		}
	}
}
