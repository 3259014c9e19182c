package planner

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// PrefillRange is the prompts of which [Low, High) tokens are not cached, and the number of prefill
// replicas that are meant for them and share one queue.
type PrefillRange struct {
	Low, High policies.Tokens
	Replicas  int
}

const (
	// maxDivided is the most prefill replicas that are divided: among more, one is nearly always
	// free, as long as they keep up at all.
	maxDivided = 16
	// maxPrefillRanges bounds the number of ranges.
	maxPrefillRanges = 8
	// maxBusiest is how much more work than the mean the replicas of a range may have.
	maxBusiest = 1.3
)

// DividePrefill divides k prefill replicas among the prompts of a flow, by how many of their tokens are
// not cached, so that short prompts do not wait behind long ones. The flow is that of the prefill
// replicas: all its prompts count. The result has as many ranges as possible such that no replica
// has more than 1.3 times the mean work; among equals, the busiest replica has the least. Divide
// returns one range for all prompts unless the ranges are predicted to reduce the mean slowdown
// (waiting time over computing time) by at least MinPrefillGain, compared with one queue per replica that
// takes prompts of all lengths. That is the baseline because front ends know the queues with a delay.
//
// The ranges are contiguous and ascending, from 0 to policies.Unbounded, and their replicas sum up
// to k. Divide is a pure function.
func DividePrefill(f policies.Flow, c policies.Cost, k int) []PrefillRange {
	ranges, _ := divideClasses(promptClasses(f, c, func(int) bool { return true }), k)
	return ranges
}

// promptClass is the prompts of which about the same number of tokens is not cached.
type promptClass struct {
	uncached policies.Tokens
	load     promptLoad
}

// promptClasses returns the prompts of the buckets that count, ascending by what is not cached of them.
func promptClasses(f policies.Flow, c policies.Cost, counts func(bucket int) bool) []promptClass {
	var all []promptClass
	for b, n := range f.Arrivals {
		if n <= 0 || f.Prefill[b] <= 0 || !counts(b) {
			continue
		}
		x := promptClass{uncached: policies.Tokens(f.Prefill[b] / n)}
		x.load.add(n, promptSeconds(f, c, b))
		all = append(all, x)
	}
	slices.SortStableFunc(all, func(a, b promptClass) int { return int(a.uncached - b.uncached) })
	out := all[:0]
	for _, x := range all {
		if last := len(out) - 1; last >= 0 && out[last].uncached == x.uncached { // no boundary is between them
			out[last].load = out[last].load.plus(x.load)
			continue
		}
		out = append(out, x)
	}
	return out
}

// divideClasses is Divide for ascending classes. It also returns how many prompts wait, without those that
// are computed; +Inf if the replicas cannot keep up. That is the smaller one of the predictions with
// the ranges and without them, because prompts leave their range where its queue is longer.
func divideClasses(classes []promptClass, k int) (ranges []PrefillRange, waiting float64) {
	together := []PrefillRange{{High: policies.Unbounded, Replicas: k}}
	pooled, _ := predictWaiting(classes, together)
	if k < 2 || k > maxDivided || math.IsInf(pooled, 1) {
		return together, pooled
	}
	for n := min(k, len(classes), maxPrefillRanges); n > 1; n-- {
		ranges, busiest := balanceRanges(classes, k, n)
		if busiest > maxBusiest {
			continue
		}
		waiting, slowdown := predictWaiting(classes, ranges)
		if slowdown <= (1-MinPrefillGain)*slowdownAlike(classes, k) {
			return ranges, min(waiting, pooled)
		}
		break
	}
	return together, pooled
}

// slowdownAlike is the slowdown of predictWaiting if each replica has a queue of its own, with prompts of all
// classes alike.
func slowdownAlike(classes []promptClass, k int) float64 {
	one := make([]promptClass, len(classes))
	for i, c := range classes {
		one[i] = promptClass{c.uncached, promptLoad{c.load.rate / float64(k), c.load.work / float64(k), c.load.squares / float64(k)}}
	}
	_, slowdown := predictWaiting(one, []PrefillRange{{High: policies.Unbounded, Replicas: 1}})
	return float64(slowdown * float64(k))
}

// predictWaiting returns the mean number of waiting prompts, and the rate of prompts times their mean
// slowdown, which is waiting time over computing time. Both are +Inf if a range's replicas
// cannot keep up.
func predictWaiting(classes []promptClass, ranges []PrefillRange) (waiting, slowdown float64) {
	for _, r := range ranges {
		var load promptLoad
		perSecond := 0.0 // Σ rate / seconds
		for ; len(classes) > 0 && classes[0].uncached < r.High; classes = classes[1:] {
			x := classes[0].load
			load = load.plus(x)
			perSecond += x.rate / x.mean()
		}
		if load.rate > 0 {
			wait := load.wait(r.Replicas, 0)
			waiting += float64(load.rate * wait)
			slowdown += float64(perSecond * wait)
		}
	}
	return waiting, slowdown
}

// balanceRanges divides k replicas into n ranges of classes, 1 to min(k, len(classes)), so that the work of
// the busiest replica is least. It returns that as a multiple of the mean.
func balanceRanges(classes []promptClass, k, n int) (ranges []PrefillRange, busiest float64) {
	// least[r][m][j] is the work of the busiest replica if m of them have the first j classes in r
	// ranges, and from where the last of these begins: how many classes and replicas are before it.
	type origin struct{ classes, replicas int }
	width := len(classes) + 1
	at := func(r, m, j int) int { return (r*(k+1)+m)*width + j }
	least, from := make([]float64, (n+1)*(k+1)*width), make([]origin, (n+1)*(k+1)*width)
	for i := range least {
		least[i] = math.Inf(1)
	}
	least[at(0, 0, 0)] = 0
	all := 0.0
	for i := range classes {
		all += classes[i].load.work
		work := 0.0
		for j := i + 1; j < width; j++ {
			work += classes[j-1].load.work
			for r := range n {
				for m := r; m < k; m++ {
					before := least[at(r, m, i)]
					if math.IsInf(before, 1) {
						continue
					}
					for own := 1; m+own <= k; own++ {
						if x := max(before, work/float64(own)); x < least[at(r+1, m+own, j)] {
							least[at(r+1, m+own, j)], from[at(r+1, m+own, j)] = x, origin{i, m}
						}
					}
				}
			}
		}
	}
	high, m, j := policies.Unbounded, k, len(classes)
	for r := n; r > 0; r-- {
		o := from[at(r, m, j)]
		x := PrefillRange{High: high, Replicas: m - o.replicas}
		if r > 1 {
			x.Low = (classes[o.classes-1].uncached + classes[o.classes].uncached + 1) / 2
		}
		ranges, high, m, j = append(ranges, x), x.Low, o.replicas, o.classes
	}
	slices.Reverse(ranges)
	return ranges, least[at(n, k, len(classes))] / all * float64(k)
}
