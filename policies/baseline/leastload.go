package baseline

import "math/rand/v2"

// LeastLoad takes the replica with the least load, then with the fewest requests, then the first.
type LeastLoad struct{}

// Route implements Router.
func (LeastLoad) Route(_ Request, replicas []Replica, _ *rand.Rand) int {
	return best(replicas, func(i, j int) bool {
		a, b := &replicas[i], &replicas[j]
		return a.Load < b.Load || a.Load == b.Load && a.Requests < b.Requests
	})
}
