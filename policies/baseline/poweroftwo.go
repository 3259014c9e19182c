package baseline

import "math/rand/v2"

// PowerOfTwo takes the one with fewer requests of two random replicas, as Envoy's LEAST_REQUEST does.
type PowerOfTwo struct{}

// Route implements Router.
func (PowerOfTwo) Route(_ Request, replicas []Replica, rng *rand.Rand) int {
	if allDown(replicas) {
		return -1
	}
	draw := func() int {
		for {
			if at := rng.IntN(len(replicas)); !replicas[at].Down {
				return at
			}
		}
	}
	a, b := draw(), draw()
	if replicas[b].Requests < replicas[a].Requests {
		return b
	}
	return a
}
