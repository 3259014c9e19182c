package baseline

import "math/rand/v2"

// RoundRobin takes one replica after the other. The zero value is ready.
type RoundRobin struct{ next int }

// Route implements Router.
func (p *RoundRobin) Route(_ Request, replicas []Replica, _ *rand.Rand) int {
	for range replicas {
		at := p.next % len(replicas)
		p.next = at + 1
		if !replicas[at].Down {
			return at
		}
	}
	return -1
}
