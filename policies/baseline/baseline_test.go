package baseline_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
)

// TestRouters checks every router on random fleets: it takes a replica that is up if there is one, and
// equal calls give equal choices.
func TestRouters(t *testing.T) {
	for _, name := range baseline.Names() {
		t.Run(name, func(t *testing.T) {
			a, ok := baseline.New(name)
			if !ok {
				t.Fatal("it does not exist")
			}
			b, _ := baseline.New(name)
			rng := rand.New(rand.NewPCG(1, 2))
			used := map[int]bool{}
			for step := range 5000 {
				replicas := make([]baseline.Replica, 8)
				up := false
				for i := range replicas {
					replicas[i] = baseline.Replica{Requests: rng.IntN(200), Load: policies.Tokens(rng.IntN(9000)), Capacity: 8000, Cached: policies.Tokens(rng.IntN(3) * 512), Waiting: rng.IntN(9), Down: rng.IntN(3) == 0 || step%97 == 0}
					up = up || !replicas[i].Down
				}
				r := baseline.Request{Input: policies.Tokens(1 + rng.IntN(3000))}
				for range rng.IntN(4) {
					r.Prefix = append(r.Prefix, uint64(len(r.Prefix)<<8+rng.IntN(3)))
				}
				seed := rng.Uint64()
				x, y := a.Route(r, replicas, rand.New(rand.NewPCG(seed, 0))), b.Route(r, replicas, rand.New(rand.NewPCG(seed, 0)))
				if x != y || up != (x >= 0) || x >= 0 && replicas[x].Down {
					t.Fatalf("step %d: %d and %d of %+v", step, x, y, replicas)
				}
				used[x] = true
			}
			if len(used) != 9 {
				t.Errorf("used %v, want all replicas and −1", used)
			}
		})
	}
	if _, ok := baseline.New("x"); ok {
		t.Error("unknown router")
	}
}

// TestChoices is a table of single choices.
func TestChoices(t *testing.T) {
	requests := func(n ...int) (out []baseline.Replica) {
		for _, x := range n {
			out = append(out, baseline.Replica{Requests: x})
		}
		return out
	}
	rng := rand.New(rand.NewPCG(1, 1))
	robin := &baseline.RoundRobin{}
	var got []int
	for range 5 {
		got = append(got, robin.Route(baseline.Request{}, []baseline.Replica{{}, {Down: true}, {}}, rng))
	}
	if !slices.Equal(got, []int{0, 2, 0, 2, 0}) {
		t.Errorf("round robin: %v", got)
	}
	for _, c := range []struct {
		router   baseline.Router
		replicas []baseline.Replica
		want     int
	}{
		// 100 · 3 against 40 · 8 and 300 · 1.
		{baseline.LMetric{}, []baseline.Replica{{Cached: 200, Requests: 2}, {Cached: 260, Requests: 7}, {Requests: 1}}, 0},
		{baseline.LMetric{}, []baseline.Replica{{Cached: 200, Requests: 3}, {Cached: 260, Requests: 7}, {Requests: 0}}, 2},
		// What is wholly cached costs nothing anywhere.
		{baseline.LMetric{}, []baseline.Replica{{Cached: 300, Requests: 7}, {Cached: 300, Requests: 6}}, 1},
		// 3 · ⅔ + 0 + 2 · ½ against 0 + 2 + 2 · ½ + a little.
		{baseline.LLMD{}, []baseline.Replica{{Cached: 200, Waiting: 4, Load: 50, Capacity: 100}, {Waiting: 1, Load: 49, Capacity: 100}}, 1},
		{baseline.LLMD{}, []baseline.Replica{{Cached: 250, Waiting: 4, Load: 50, Capacity: 100}, {Waiting: 1, Load: 49, Capacity: 100}}, 0},
	} {
		if got := c.router.Route(baseline.Request{Input: 300}, c.replicas, rng); got != c.want {
			t.Errorf("%T of %+v: %d, want %d", c.router, c.replicas, got, c.want)
		}
	}
	for _, c := range []struct {
		replicas []baseline.Replica
		want     int
	}{
		{[]baseline.Replica{{Load: 5}, {Load: 3, Requests: 9}, {Load: 4}}, 1},
		{[]baseline.Replica{{Load: 3, Requests: 2}, {Load: 3, Requests: 1}, {Load: 3, Requests: 1}}, 1},
		{[]baseline.Replica{{Load: 3, Down: true}, {Load: 7}}, 1},
	} {
		if got := (baseline.LeastLoad{}).Route(baseline.Request{}, c.replicas, rng); got != c.want {
			t.Errorf("least load of %+v: %d, want %d", c.replicas, got, c.want)
		}
	}
	// Of two draws of two, three quarters have the idle one.
	idle := 0
	for range 4000 {
		if (baseline.PowerOfTwo{}).Route(baseline.Request{}, requests(1, 0), rng) == 1 {
			idle++
		}
	}
	if idle < 2900 || idle > 3100 {
		t.Errorf("power of two: the idle one got %d of 4000, want about 3000", idle)
	}
	// One replica more takes its share from all, and moves nothing else.
	moved := 0
	for id := range uint64(3000) {
		r := baseline.Request{Prefix: []uint64{id, 7}}
		a, b := (baseline.PrefixHash{}).Route(r, requests(0, 0, 0, 0), rng), (baseline.PrefixHash{}).Route(r, requests(9, 9, 9, 9, 9), rng)
		if a != b && b != 4 {
			t.Fatalf("prefix %d moved from %d to %d", id, a, b)
		}
		if a != b {
			moved++
		}
	}
	if moved < 500 || moved > 700 {
		t.Errorf("prefix hash: %d of 3000 moved to a fifth replica, want about 600", moved)
	}
}

func TestPrefixTree(t *testing.T) {
	idle := make([]baseline.Replica, 3)
	ask := func(tree *baseline.PrefixTree, input int, replicas []baseline.Replica, prefix ...uint64) int {
		return tree.Route(baseline.Request{Input: policies.Tokens(input), Prefix: prefix}, replicas, nil)
	}
	tree := &baseline.PrefixTree{MaxBlocks: 6}
	for i, c := range []struct {
		why      string
		input    int
		replicas []baseline.Replica
		prefix   []uint64
		want     int
	}{
		{"new: the first of the empty ones", 1024, idle, []uint64{1, 2}, 0},
		{"new: an empty one", 2000, idle, []uint64{11, 12}, 1},
		{"all known", 1024, idle, []uint64{1, 2}, 0},
		{"half known is too little", 2048, idle, []uint64{1, 2, 3, 4}, 2},
		{"its longest prefix is at 2", 2048, idle, []uint64{1, 2, 3, 4}, 2},
		{"not where it is down", 1030, []baseline.Replica{{}, {}, {Down: true}}, []uint64{1, 2}, 0},
		{"load: 65 more, and more than 1.5 times", 1024, []baseline.Replica{{Requests: 65}, {}, {Requests: 3}}, []uint64{1, 2}, 1},
		{"load: 64 more", 1024, []baseline.Replica{{Requests: 64}, {Requests: 1}, {}}, []uint64{1, 2}, 1},
		{"load: less than 1.5 times", 1536, []baseline.Replica{{Requests: 900}, {Requests: 700}, {Requests: 900}}, []uint64{1, 2, 3}, 2},
		{"without blocks: fewest new tokens", 100, idle, nil, 2},
		{"without blocks: which count", 3000, idle, nil, 0},
		{"forgotten: only six blocks fit", 1024, idle, []uint64{21, 22}, 2},
		{"fewest new tokens", 500, idle, nil, 1},
		{"forgotten", 1024, idle, []uint64{11, 12}, 2},
	} {
		if got := ask(tree, c.input, c.replicas, c.prefix...); got != c.want {
			t.Errorf("%d, %s: %d, want %d", i, c.why, got, c.want)
		}
	}
}
