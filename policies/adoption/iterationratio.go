package adoption

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// ratioSlack is by how much more than a new one a plan in force may let a stage's iterations take, before it
// is over its limits: flows change all the time, and at the limit plans would follow every change.
const ratioSlack = 1.1

// rounding is how far a bound is above what it was computed from, so that one stage is always within
// its own.
const rounding = 1e-9

// LimitIterationRatio bounds what the longest requests pay for the faster iterations of the others: the
// planner that it returns proposes only divisions in which no stage's predicted iteration takes
// longer than most times that of all replicas in one stage, at the same flow. As a price it allows a
// tenth more, so that a plan in force is over its limits only beyond that. most is at least 1; at
// 1 only one stage, and stages that are as fast, remain. A flow that one stage cannot carry has no
// such bound. Limits.Iteration bounds as before.
func LimitIterationRatio(p Planner, most float64) Planner { return limitedRatio{p, most} }

type limitedRatio struct {
	planner Planner
	most    float64
}

// Partition proposes within the bound; see LimitIterationRatio.
func (l limitedRatio) Partition(w policies.Workload) (policies.Partition, error) {
	return l.planner.Partition(l.limit(w, l.most))
}

// Price prices within the bound and its slack; see LimitIterationRatio.
func (l limitedRatio) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	return l.planner.Price(l.limit(w, l.most*ratioSlack), cuts, counts)
}

// limit returns the workload with its bound on iterations. An invalid workload, which Price refuses,
// stays as it is for the planner to refuse.
func (l limitedRatio) limit(w policies.Workload, most float64) policies.Workload {
	one, _ := l.planner.Price(w, nil, []int{w.Replicas})
	if len(one.Iterations) != 1 || math.IsInf(one.Iterations[0], 1) {
		return w
	}
	if bound := most * one.Iterations[0] * (1 + rounding); bound > 0 && (w.Limits.Iteration == 0 || bound < w.Limits.Iteration) {
		w.Limits.Iteration = bound
	}
	return w
}
