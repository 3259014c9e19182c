package baseline

import (
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
)

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

// LeastLoad takes the replica with the least load, then with the fewest requests, then the first.
type LeastLoad struct{}

// Route implements Router.
func (LeastLoad) Route(_ Request, replicas []Replica, _ *rand.Rand) int {
	return best(replicas, func(i, j int) bool {
		a, b := &replicas[i], &replicas[j]
		return a.Load < b.Load || a.Load == b.Load && a.Requests < b.Requests
	})
}

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

// PrefixHash takes the replica that a hash of the prompt's first block ranks highest (rendezvous
// hashing): requests with the same beginning meet on one replica, whatever its load. Requests without
// a known beginning go to a random replica.
type PrefixHash struct{}

// Route implements Router.
func (PrefixHash) Route(r Request, replicas []Replica, rng *rand.Rand) int {
	key := rng.Uint64()
	if len(r.Prefix) > 0 {
		key = r.Prefix[0]
	}
	at, highest := -1, uint64(0)
	for i := range replicas {
		if replicas[i].Down {
			continue
		}
		if h := mix(key ^ uint64(i+1)*0x9e3779b97f4a7c15); at < 0 || h > highest {
			at, highest = i, h
		}
	}
	return at
}

// mix is a bijective finaliser: every input bit reaches every output bit.
func mix(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}

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

// PrefillDecode serves a fleet that is split for ever: some replicas compute prompts, the others
// generate, as DistServe (Zhong et al., OSDI 2024) and the disaggregated modes of vLLM and SGLang do. A
// request starts on the prefill replica with the fewest prompt tokens waiting, which sends its first
// token; then its whole KV is transferred to the decode replica with the least load, which generates
// the rest (DistServe, section 4.3: the shortest queue, then the least loaded decode instance).
type PrefillDecode struct{}

var _ Disaggregator = PrefillDecode{}

// Route implements Router. Replicas are the prefill replicas, whose Load is what waits there.
func (PrefillDecode) Route(r Request, replicas []Replica, rng *rand.Rand) int {
	return LeastLoad{}.Route(r, replicas, rng)
}

// RouteDecode implements Disaggregator.
func (PrefillDecode) RouteDecode(_ policies.Tokens, replicas []Replica) int {
	return LeastLoad{}.Route(Request{}, replicas, nil)
}

// DefaultPrefillReplicas is how many replicas of a fleet compute prompts where nothing else is
// configured: half of them, as in the one-to-one examples of vLLM.
func DefaultPrefillReplicas(fleet int) int { return fleet / 2 }
