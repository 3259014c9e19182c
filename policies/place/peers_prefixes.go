package place

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// maxHolders bounds the peers that are offered to the Placer because of what they hold.
const maxHolders = 4

// Prefixes is what a peer is known to hold; *prefix.Summary implements it.
type Prefixes interface {
	// MatchSteps returns how many leading tokens of the prompt that has these steps it holds. It
	// may be wrong: a wrong answer costs time only.
	MatchSteps(steps []prefix.Step) policies.Tokens
}

// SetPeerPrefixes sets what a peer holds, until it is set again or the peer is gone. A nil
// Prefixes: nothing, or unknown.
func (b *Peers) SetPeerPrefixes(from policies.ReplicaID, p Prefixes) {
	if e := b.peers[from]; e != nil {
		b.setPrefixes(e, p)
	}
}

func (b *Peers) setPrefixes(e *peerEntry, p Prefixes) {
	if e.prefixes != nil {
		b.holders--
	}
	if e.prefixes = p; p != nil {
		b.holders++
	}
}

// Holders returns how many peers are known to hold anything.
func (b *Peers) Holders() int { return b.holders }

// addPrefixes fills in how much of a prompt the sites hold, and adds the peers that hold
// more than each of them, the best ones. It examines a bounded number of peers, those of
// stage first before others.
func (b *Peers) addPrefixes(now policies.Micros, first int, steps []prefix.Step,
	pass func(policies.Micros, *peerEntry) bool) {
	if len(steps) == 0 || b.holders == 0 {
		return
	}
	longest := policies.Tokens(0)
	for i := range b.sites {
		if p := b.peers[b.sites[i].ID].prefixes; p != nil {
			b.sites[i].Prefix = p.MatchSteps(steps)
			longest = max(longest, b.sites[i].Prefix)
		}
	}
	sampled, examined := len(b.sites), 0
	b.addHolders(now, b.stages[first], steps, sampled, longest, &examined, pass)
	for k, entries := range b.stages {
		if k != first {
			b.addHolders(now, entries, steps, sampled, longest, &examined, pass)
		}
	}
}

// addHolders adds those of the entries that hold more of a prompt than the longest prefix of
// the sampled sites. Beyond maxHolders a longer prefix replaces the shortest.
func (b *Peers) addHolders(now policies.Micros, entries []*peerEntry, steps []prefix.Step, sampled int,
	longest policies.Tokens, examined *int, pass func(policies.Micros, *peerEntry) bool) {
	if len(entries) == 0 {
		return
	}
	start := b.rng.IntN(len(entries))
	for i := range entries {
		e := entries[(start+i)%len(entries)]
		if e.prefixes == nil || !b.open(now, e) || !pass(now, e) {
			continue
		}
		if *examined++; *examined > maxExamined {
			return
		}
		held := e.prefixes.MatchSteps(steps)
		if held <= longest {
			continue
		}
		holders := b.sites[sampled:]
		if len(holders) == maxHolders {
			least := 0
			for j := range holders {
				if holders[j].Prefix < holders[least].Prefix {
					least = j
				}
			}
			if holders[least].Prefix >= held {
				continue
			}
			b.sites = slices.Delete(b.sites, sampled+least, sampled+least+1)
		}
		b.addSite(e, b.plan.Stages[e.stage].Low, b.plan.Stages[e.stage].High).Prefix = held
	}
}

// prefixOf returns how much of the prompt that was placed last a site holds.
func (b *Peers) prefixOf(id policies.ReplicaID) policies.Tokens {
	for i := range b.sites {
		if b.sites[i].ID == id {
			return b.sites[i].Prefix
		}
	}
	return 0
}

// LongestPrefix returns the peer that is known to hold most of the prompt that has these steps,
// and how many tokens; 0 tokens if none is known. Its KV is copied, and the request does not go
// there: a replica that drains is as good as another one. It examines a bounded number of peers;
// among equals, one at random.
func (b *Peers) LongestPrefix(steps []prefix.Step) (policies.Target, policies.Tokens) {
	if len(steps) == 0 || b.holders == 0 {
		return policies.Target{}, 0
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
		return policies.Target{}, 0
	}
	return policies.Target{Replica: best.id, Address: best.address}, longest
}
