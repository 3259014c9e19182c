package loadview

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// LongestPrefix returns the peer that is known to hold most of the prompt that has these steps,
// and how many tokens; 0 tokens if none is known. Its KV is copied, and the request does not go
// there: a replica that drains is as good as another one. It examines a bounded number of peers;
// among equals, one at random.
func (b *View) LongestPrefix(steps []prefix.Step) (Target, policies.Tokens) {
	if len(steps) == 0 || b.holders == 0 {
		return Target{}, 0
	}
	var best *peerEntry
	longest, examined := policies.Tokens(0), 0
	look := func(entries []*peerEntry) {
		if len(entries) == 0 {
			return
		}
		start := b.rng.IntN(len(entries))
		for i := range entries {
			e := entries[(start+i)%len(entries)]
			if e.prefixes == nil || e.gone || e.address == "" {
				continue
			}
			if examined++; examined > maxExamined {
				return
			}
			if held := e.prefixes.MatchSteps(steps); held > longest {
				best, longest = e, held
			}
		}
	}
	for _, entries := range b.stages {
		look(entries)
	}
	look(b.prefill)
	if best == nil {
		return Target{}, 0
	}
	return Target{Replica: best.id, Address: best.address}, longest
}
