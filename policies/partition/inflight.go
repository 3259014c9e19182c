package partition

import "github.com/cascadeinfer/cascade/policies"

// maxSlowdown bounds the iteration time that InFlight predicts for an overloaded fleet, as a
// multiple of that of an idle one.
const maxSlowdown = 20

// InFlight predicts how many requests a workload's flow keeps in flight in one stage of all
// its replicas, by Little's law. A snapshot of as many requests does not depend on the plan
// in force. It is 0 for an invalid workload.
func InFlight(w policies.Workload) float64 {
	w.Limits = policies.Limits{}
	one, err := Flow.Price(w, nil, []int{w.Replicas})
	if len(one.Iterations) == 0 { // err is a violation
		return 0
	}
	iteration := one.Iterations[0]
	if err != nil {
		iteration = min(iteration, maxSlowdown*w.Cost.D0)
	}
	tokens := 0.0
	for _, rate := range w.Flow.Tokens {
		tokens += rate
	}
	return tokens * iteration
}
