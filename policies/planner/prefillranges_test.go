package planner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// prompts returns classes of prompts that take a tenth of a millisecond a token, from pairs of
// uncached tokens and prompts per second.
func prompts(pairs ...float64) (out []promptClass) {
	for i := 0; i < len(pairs); i += 2 {
		c := promptClass{uncached: policies.Tokens(pairs[i])}
		c.load.add(pairs[i+1], pairs[i]*1e-4)
		out = append(out, c)
	}
	return out
}

// TestDivideChoices checks divisions that need no model to agree with.
func TestDivideChoices(t *testing.T) {
	for _, c := range []struct {
		name    string
		classes []promptClass
		k       int
		want    string
	}{
		{"no prompts", nil, 4, "0-∞:4"},
		{"no replica", prompts(1000, 1, 9000, 1), 0, "0-∞:0"},
		{"one replica", prompts(1000, 1, 9000, 0.2), 1, "0-∞:1"},
		{"prompts of one length", prompts(3000, 4), 4, "0-∞:4"},
		{"almost of one length", prompts(3000, 2, 3100, 2), 2, "0-∞:2"},
		{"short and very long ones", prompts(1000, 6, 60_000, 0.1), 2, "0-30500:1 30500-∞:1"},
		{"more short ones", prompts(1000, 12, 60_000, 0.1), 3, "0-30500:2 30500-∞:1"},
		{"more long ones", prompts(1000, 6, 60_000, 0.2), 3, "0-30500:1 30500-∞:2"},
		{"too much", prompts(1000, 6, 60_000, 1), 2, "0-∞:2"},
		{"no balance", prompts(1000, 2, 60_000, 0.1), 2, "0-∞:2"},
		{"as many ranges as replicas", prompts(1000, 4, 8000, 0.5, 60_000, 0.07), 3, "0-4500:1 4500-34000:1 34000-∞:1"},
		{"the boundary is between the lengths", prompts(1000, 4, 2000, 1, 60_000, 0.1), 2, "0-31000:1 31000-∞:1"},
		{"so many that one is free", prompts(1000, 60, 60_000, 1), maxDivided + 1, "0-∞:17"},
	} {
		ranges, _ := divideClasses(c.classes, c.k)
		got := ""
		for i, r := range ranges {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprint(r.Low, "-", r.High, ":", r.Replicas)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// leastBusiest tries every division of the work of classes and of k replicas into n ranges, and returns the work of
// the busiest replica in the best one.
func leastBusiest(work []float64, k, n int) float64 {
	if n == 0 {
		if len(work)+k == 0 {
			return 0
		}
		return math.Inf(1)
	}
	least, sum := math.Inf(1), 0.0
	for i := range work {
		sum += work[i]
		for own := 1; own <= k; own++ {
			least = min(least, max(sum/float64(own), leastBusiest(work[i+1:], k-own, n-1)))
		}
	}
	return least
}

// TestDivideExactly compares divisions with the best of all of them, and checks their ranges.
func TestDivideExactly(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	divided := map[int]int{}
	for range 500 {
		k := 1 + rng.IntN(5)
		var pairs []float64
		for n, length := 1+rng.IntN(6), 1024.0; len(pairs) < 2*n; length += 1 + math.Exp(rng.Float64()*11) {
			work := float64(k) / float64(n) * (0.4 + 0.55*rng.Float64())
			pairs = append(pairs, math.Floor(length), work*1e4/math.Floor(length))
		}
		classes := prompts(pairs...)
		var all promptLoad
		var work []float64
		for _, c := range classes {
			all = all.plus(c.load)
			work = append(work, c.load.work)
		}
		mean := all.work / float64(k)
		ranges, waiting := divideClasses(classes, k)
		// What is predicted for the ranges, by sums of its own.
		low, sum, at, busiest, wait, slowdown, oneSlowdown := policies.Tokens(0), 0, 0, 0.0, 0.0, 0.0, 0.0
		for _, r := range ranges {
			var load promptLoad
			first := at
			for ; at < len(classes) && classes[at].uncached < r.High; at++ {
				load = load.plus(classes[at].load)
			}
			if r.Low != low || r.High <= r.Low || r.Replicas < 1 {
				t.Errorf("%d replicas, %v: %+v", k, pairs, ranges)
			}
			low, sum, busiest = r.High, sum+r.Replicas, max(busiest, load.work/float64(r.Replicas))
			wait += load.rate * load.wait(r.Replicas, 0)
			for _, c := range classes[first:at] {
				slowdown += c.load.rate * load.wait(r.Replicas, 0) / (float64(c.uncached) * 1e-4)
				oneSlowdown += c.load.rate * promptLoad{all.rate / float64(k), all.work / float64(k), all.squares / float64(k)}.wait(1, 0) / (float64(c.uncached) * 1e-4)
			}
		}
		if low != policies.Unbounded || sum != k || at != len(classes) {
			t.Errorf("%d replicas, %v: %+v", k, pairs, ranges)
		}
		if want := min(wait, all.rate*all.wait(k, 0)); waiting != want && !(math.Abs(waiting-want) <= 1e-9*want) {
			t.Errorf("%d replicas, %v: %v wait, want %v", k, pairs, waiting, want)
		}
		divided[len(ranges)]++
		n := len(ranges)
		if n > 1 {
			if best := leastBusiest(work, k, n); busiest > maxBusiest*mean || busiest > best*(1+1e-9) || slowdown > 0.9*oneSlowdown*(1+1e-9) {
				t.Errorf("%d replicas, %v: %+v: the busiest has %v, of %v at best and %v in the mean; slowdown %v, of all alike %v", k, pairs, ranges, busiest, best, mean, slowdown, oneSlowdown)
			}
			for more := n + 1; more <= min(k, len(classes)); more++ {
				if best := leastBusiest(work, k, more); best <= maxBusiest*mean*(1-1e-9) {
					t.Errorf("%d replicas, %v: %d ranges, but in %d the busiest has only %v, %v in the mean", k, pairs, n, more, best, mean)
				}
			}
		}
	}
	if divided[1] < 50 || divided[2] < 20 || divided[3] < 10 {
		t.Errorf("numbers of ranges: %v", divided)
	}
}

// TestDivideFlow checks what Divide reads of a flow: prompts by what is not cached of them, not by their length.
func TestDivideFlow(t *testing.T) {
	f := policies.NewFlow(policies.BucketEdges(131_072, 4))
	c := policies.Cost{D2: 1e-4}
	add := func(rate float64, input, uncached policies.Tokens) {
		b := policies.BucketOf(f.Edges, input)
		f.Arrivals[b] += rate
		f.Prefill[b] += rate * float64(uncached)
		f.Prefill2[b] += rate * float64(uncached*(2*input-uncached))
	}
	add(3, 50_000, 1000)
	add(3, 3000, 1000)
	add(0.1, 60_000, 60_000)
	if got, want := DividePrefill(f, c, 2), []PrefillRange{{0, 30_500, 1}, {30_500, policies.Unbounded, 1}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	add(3, 130_000, 0) // nothing to compute
	if got := DividePrefill(f, c, 2); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}

// TestPriceDivides checks that a split is priced with its prompts divided by length.
func TestPriceDivides(t *testing.T) {
	w := workload(8, 1500, 100, 8)
	add(&w, 0.25, 30_000, 100)
	q, err := PricePrefill(partition.Exact{}, w)
	testkit.NoError(t, err)
	classes := promptClasses(w.Flow, w.Cost, func(int) bool { return true })
	var all promptLoad
	for _, c := range classes {
		all = all.plus(c.load)
	}
	ranges, waiting := divideClasses(classes, 2)
	if o := q.Options[2]; len(ranges) != 2 || math.Abs(o.Wait-waiting-all.work) > 1e-9 || o.Wait >= all.rate*(all.wait(2, 0)+all.mean()) {
		t.Errorf("%v wait with 2 prefill replicas; divided %v, in one queue %v", o.Wait, waiting+all.work, all.rate*(all.wait(2, 0)+all.mean()))
	}
}
