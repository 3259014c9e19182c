package baseline

import "math/rand/v2"

// LMetric takes the replica with the least product of the prompt tokens that it would compute and of the requests that
// it would have (LMetric, arXiv 2603.15202).
type LMetric struct{}

// Route implements Router.
func (LMetric) Route(r Request, replicas []Replica, _ *rand.Rand) int {
	score := func(i int) int64 {
		x := &replicas[i]
		return int64(max(r.Input-x.Cached, 1)) * int64(x.Requests+1)
	}
	return best(replicas, func(a, b int) bool {
		if score(a) != score(b) {
			return score(a) < score(b)
		}
		return replicas[a].Requests < replicas[b].Requests
	})
}

// LLMD takes the replica with the highest weighted sum of three scores, as llm-d's endpoint picker does with the
// weights of its guide for exact prefixes: 3 for the share of the prompt that is cached, 2 for a short queue among the
// replicas' and 2 for a KV cache with room.
type LLMD struct{}

const (
	llmdPrefix = 3
	llmdQueue  = 2
	llmdKV     = 2
)

// Route implements Router.
func (LLMD) Route(r Request, replicas []Replica, _ *rand.Rand) int {
	shortest, longest := -1, 0
	for i := range replicas {
		if x := &replicas[i]; !x.Down {
			if longest = max(longest, x.Waiting); shortest < 0 || x.Waiting < shortest {
				shortest = x.Waiting
			}
		}
	}
	score := func(i int) float64 {
		x, sum := &replicas[i], 0.0
		if r.Input > 0 {
			sum += llmdPrefix * float64(x.Cached) / float64(r.Input)
		}
		queue := 1.0
		if longest > shortest {
			queue = float64(longest-x.Waiting) / float64(longest-shortest)
		}
		sum += llmdQueue * queue
		if x.Capacity > 0 {
			sum += llmdKV * (1 - min(1, float64(x.Load)/float64(x.Capacity)))
		}
		return sum
	}
	return best(replicas, func(a, b int) bool { return score(a) > score(b) })
}
