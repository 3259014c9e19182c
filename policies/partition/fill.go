package partition

import "math"

// fill divides exactly e replicas among the given stages at the least cost. It returns
// false if they need more than e.
//
// Repeatedly taking the replica with the largest gain is optimal, because gains
// decrease. A price replaces most of these steps: the stages' purchases at a price are
// the greedy division of their own sum, so only the few replicas by which the sum
// differs from e are placed one by one.
func fill(stages []stage, e float64) (counts []int, cost float64, ok bool) {
	need := 0.0
	for _, st := range stages {
		need += st.kmin
	}
	if !(need <= e) {
		return nil, 0, false
	}
	ks := make([]float64, len(stages))
	sum := need
	for i, st := range stages {
		ks[i] = st.kmin
	}
	if lambda := priceIfDivisible(stages, e); lambda > 0 {
		sum = buyAll(stages, ks, e, lambda)
	}
	for ; sum < e; sum++ {
		at := 0
		for i, st := range stages {
			if st.gain(ks[i]) > stages[at].gain(ks[at]) {
				at = i
			}
		}
		ks[at]++
	}
	for ; sum > e; sum-- {
		at, least := -1, math.Inf(1)
		for i, st := range stages {
			if loss := st.gain(ks[i] - 1); ks[i] > st.kmin && (at < 0 || loss < least) {
				at, least = i, loss
			}
		}
		ks[at]--
	}
	counts = make([]int, len(stages))
	for i, st := range stages {
		counts[i] = int(ks[i])
		cost += st.price(ks[i])
	}
	return counts, cost, true
}

// priceIfDivisible returns the price at which the stages would buy e replicas if these were
// divisible: by Kleinrock's rule, stage i gets the share √num_i of those left after every
// stage's u, of which there must be some.
func priceIfDivisible(stages []stage, e float64) float64 {
	roots, left := 0.0, e
	for _, st := range stages {
		roots += math.Sqrt(st.num)
		left -= st.u
	}
	share := roots / left
	return float64(share * share)
}

// buyAll sets ks to the stages' purchases at a price near lambda at which they add up to
// about e, and returns their sum.
func buyAll(stages []stage, ks []float64, e, lambda float64) float64 {
	low, high := 0.0, math.Inf(1) // prices at which too many, too few are bought
	sum := 0.0
	for range 64 {
		sum = 0
		for i, st := range stages {
			ks[i] = st.countAtPrice(lambda, e)
			sum += ks[i]
		}
		switch {
		case math.Abs(sum-e) <= float64(len(stages)):
			return sum
		case sum > e:
			low = lambda
		default:
			high = lambda
		}
		switch {
		case math.IsInf(high, 1):
			lambda = low * 4
		case low == 0:
			lambda = high / 4
		default:
			lambda = math.Sqrt(low) * math.Sqrt(high)
		}
	}
	return sum
}
