package loadview

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// StageMean returns the mean of the tokens that the replicas of the own stage hold, this one
// included. ok is false unless most of them, or as many as a sample, have a recent load.
func (b *View) StageMean(now policies.Micros) (mean policies.Tokens, ok bool) {
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

// SampleNeighbours returns the peers to which this replica sends its load next: random samples
// of SampleSize of its stage, of the stage before, whose requests grow into this one, and of
// all others. A prefill replica, where every front end may place requests, sends it to more.
func (b *View) SampleNeighbours() (stage, before, others []policies.ReplicaID) {
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
	more := 1
	if b.prefillSelf {
		more = prefillSummaries
	}
	return b.sample(stage, 1), b.sample(before, 1), b.sample(others, more)
}

// prefillSummaries is how many times as many others a prefill replica sends its load to.
const prefillSummaries = 8

// sample returns at most so many times SampleSize of the ids, at random. It changes their order.
func (b *View) sample(ids []policies.ReplicaID, times int) []policies.ReplicaID {
	n := min(times*b.cfg.SampleSize, len(ids))
	for i := range n {
		at := i + b.rng.IntN(len(ids)-i)
		ids[i], ids[at] = ids[at], ids[i]
	}
	return ids[:n]
}
