// Package baseline holds the routers and schedulers that users would pick instead of Cascade, for
// comparisons.
//
// Each is one small state machine behind Router; New makes one by name. They read no clock and draw
// random numbers only from the argument, so that equal calls give equal choices. A router that is not
// available to requests (it counts those that it sent, and learns loads late) sees that through Replica. Two kinds also move
// running requests, or say where they go on: Rebalancer and Disaggregator.
package baseline

import (
	"math/rand/v2"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Request is what a router knows of a request.
type Request struct {
	Input policies.Tokens
	// Prefix names the prompt's leading blocks of BlockTokens tokens; equal ids mean equal blocks after
	// equal prefixes. Empty where nothing is known. It is not kept.
	Prefix []uint64
}

// BlockTokens is the length of a block of Request.Prefix.
const BlockTokens = 512

// Replica is what a router knows of a replica.
type Replica struct {
	// Requests is the number of requests that this router has sent there and that have not ended.
	Requests int
	// Load is the KV in use and promised, as the replica reported last, with the prompts that this
	// router has sent since.
	Load policies.Tokens
	// Capacity is the size of its KV cache.
	Capacity policies.Tokens
	// Cached is how much of the prompt it has cached now, as its KV events say, and Waiting how many requests wait
	// there for their first token, as its metrics say. Both are as of now.
	Cached  policies.Tokens
	Waiting int
	// Down excludes the replica: it drains, or failed its health checks.
	Down bool
}

// Router chooses the replica of a request.
type Router interface {
	// Route returns the index of a replica that is not Down, or −1 if all are. rng is not kept.
	Route(r Request, replicas []Replica, rng *rand.Rand) int
}

// Pair is two replicas between which one running request should move.
type Pair struct{ From, To int }

// Rebalancer is a Router that also moves running requests: one central scheduler that sends all
// requests, and whose Load is measured just before Rebalance is called.
type Rebalancer interface {
	Router
	// Rebalance returns pairs of different replicas, each replica at most once.
	Rebalance(replicas []Replica) []Pair
	// Choose returns the index of the request that leaves a replica, by the lengths of those that run
	// there and are not moving; −1 if there are none.
	Choose(lengths []policies.Tokens) int
}

// Disaggregator is a Router whose fleet is split: Route is asked about the replicas that compute
// prompts, RouteDecode about those that generate.
type Disaggregator interface {
	Router
	// RouteDecode returns the index of the replica where a request of that length goes on after its
	// first token; −1 if all are Down.
	RouteDecode(length policies.Tokens, replicas []Replica) int
}

// routers makes each by name.
var routers = []struct {
	name string
	make func() Router
}{
	{"round-robin", func() Router { return &RoundRobin{} }},
	{"least-load", func() Router { return LeastLoad{} }},
	{"power-of-two", func() Router { return PowerOfTwo{} }},
	{"prefix-hash", func() Router { return PrefixHash{} }},
	{"prefix-tree", func() Router { return &PrefixTree{} }},
	{"lmetric", func() Router { return LMetric{} }},
	{"llm-d", func() Router { return LLMD{} }},
	{"llumnix", func() Router { return Llumnix{} }},
	{"llumnix-balanced", func() Router { return Llumnix{Balanced: true} }},
	{"prefill-decode", func() Router { return PrefillDecode{} }},
}

// Names lists the routers.
func Names() []string {
	var names []string
	for _, r := range routers {
		names = append(names, r.name)
	}
	return names
}

// New returns a router by name; false if it is none of Names.
func New(name string) (Router, bool) {
	for _, r := range routers {
		if r.name == name {
			return r.make(), true
		}
	}
	return nil, false
}

// best returns the first replica that is not Down and that less puts before all others; −1 if all are.
// less compares replicas by index.
func best(replicas []Replica, less func(a, b int) bool) int {
	at := -1
	for i := range replicas {
		if !replicas[i].Down && (at < 0 || less(i, at)) {
			at = i
		}
	}
	return at
}

// fewestRequests returns the replica with the fewest requests; −1 if all are Down.
func fewestRequests(replicas []Replica) int {
	return best(replicas, func(a, b int) bool { return replicas[a].Requests < replicas[b].Requests })
}

// allDown reports whether no replica is left.
func allDown(replicas []Replica) bool {
	return !slices.ContainsFunc(replicas, func(r Replica) bool { return !r.Down })
}
