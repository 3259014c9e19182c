package replay

import (
	"cmp"
	"math"
	"slices"
)

// BalanceWindow is the time in seconds after which work counts 1/e.
const BalanceWindow = 30.0

// tokenWork is the work of a generated token, in prompt tokens.
const tokenWork = 4

// EngineWork returns the work of an engine by its counters: prompt tokens that it has computed, not found in a
// cache, and four times the tokens that it has generated, which cost so much more than prompt tokens.
func EngineWork(promptComputed, generated float64) float64 {
	return promptComputed + tokenWork*generated
}

// BalanceMeter measures how evenly work is spread over the replicas of each stage. It gets the work that every
// replica has done so far, once a second or so; a replica's load is the work of the last BalanceWindow seconds,
// older work counting less and less. It knows no clock. The zero value has no sample.
type BalanceMeter struct {
	at    float64
	last  []float64 // work of each replica at the last sample
	load  []float64
	order []int
	// Sums over samples and stages of two replicas or more.
	deviation, mean float64
}

// Sample adds the work that each replica has done since it began, at a time in seconds that does not go
// back, and the stage that each is in: equal numbers are one stage, numbers below 0 none. Of a replica
// whose work went down, which has begun again, all of it is new. All samples have the same replicas; the
// slices are not kept.
func (m *BalanceMeter) Sample(at float64, work []float64, stages []int) {
	if m.last == nil {
		m.at = at
		m.last, m.load, m.order = slices.Clone(work), make([]float64, len(work)), make([]int, len(work))
		return
	}
	keep := math.Exp((m.at - at) / BalanceWindow)
	m.at = at
	for i, w := range work {
		done := w - m.last[i]
		if done < 0 {
			done = w
		}
		m.last[i], m.load[i], m.order[i] = w, m.load[i]*keep+done, i
	}
	slices.SortStableFunc(m.order, func(a, b int) int { return cmp.Compare(stages[a], stages[b]) })
	for from := 0; from < len(m.order); {
		to := from + 1
		for to < len(m.order) && stages[m.order[to]] == stages[m.order[from]] {
			to++
		}
		if n := to - from; n > 1 && stages[m.order[from]] >= 0 {
			m.add(m.order[from:to])
		}
		from = to
	}
}

// add adds one stage of the present sample.
func (m *BalanceMeter) add(replicas []int) {
	n, sum, squares := float64(len(replicas)), 0.0, 0.0
	for _, i := range replicas {
		sum += m.load[i]
	}
	for _, i := range replicas {
		squares += (m.load[i] - sum/n) * (m.load[i] - sum/n)
	}
	m.deviation += n * math.Sqrt(squares/n)
	m.mean += sum
}

// CV returns the coefficient of variation of load between the replicas of a stage, a mean over samples
// and stages that weighs each by its load: 0 is even. It is false if no stage with two replicas had work.
func (m *BalanceMeter) CV() (float64, bool) {
	if !(m.mean > 0) {
		return 0, false
	}
	return m.deviation / m.mean, true
}
