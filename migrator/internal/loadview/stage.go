package loadview

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// StageMean returns the mean of the tokens that the replicas of the own stage hold, this one
// included. ok is false unless most of them, or as many as a sample, have a recent load.
func (b *View) StageMean(now policies.Micros) (mean policies.Tokens, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.own < 0 {
		return 0, false
	}
	sum, heard, others := b.self.Held, 0, 0
	for _, e := range b.stages[b.own] {
		if !b.open(now, e) {
			continue
		}
		others++
		if b.fresh(now, e) {
			heard++
			sum += e.load.Held
		}
	}
	if 2*heard < others && heard < b.cfg.SampleSize {
		return 0, false
	}
	return sum / policies.Tokens(heard+1), true
}

// Successors returns the requests that run on the replicas of the next stage, as far as these
// have sent them lately, and the number of these replicas.
func (b *View) Successors(now policies.Micros) (running []policies.Sequence, replicas int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.own < 0 || b.own+1 >= len(b.stages) {
		return nil, 0
	}
	for _, e := range b.stages[b.own+1] {
		if b.fresh(now, e) && e.running != nil {
			running = append(running, e.running...)
			replicas++
		}
	}
	return running, replicas
}

// Neighbours divides the peers by what they need to know of this replica: those of its stage,
// those of the stage before, whose requests grow into this one, and all others.
func (b *View) Neighbours() (stage, before, others []policies.ReplicaID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, entries := range b.stages {
		for _, e := range entries {
			switch {
			case e.address == "":
			case k == b.own:
				stage = append(stage, e.id)
			case k == b.own-1:
				before = append(before, e.id)
			default:
				others = append(others, e.id)
			}
		}
	}
	for id, e := range b.peers {
		if e.address != "" && !e.planned {
			others = append(others, id)
		}
	}
	slices.Sort(others) // in an order that does not depend on the map's
	return stage, before, others
}
