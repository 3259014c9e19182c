package loadview

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/fleetview"
)

// maxSequences bounds the sequences that represent the next stage in a refinement.
const maxSequences = 1 << 14

// BoundaryView returns the input of a Refiner for the end of this replica's stage, of which
// the control plane gives the description ask. running are the requests that run here. Those
// of the next stage are what its replicas have sent lately, or else what ask says, which is
// each bucket's mean. It returns false if ask describes no boundary.
func (b *View) BoundaryView(now policies.Micros, ask fleetview.Boundary, running []policies.Sequence, qoe policies.QoE) (policies.BoundaryView, bool) {
	if ask.Low < 0 || ask.Low >= ask.At || ask.At >= ask.High || ask.Peers < 1 || ask.Successors < 1 {
		return policies.BoundaryView{}, false
	}
	out := policies.BoundaryView{
		Low: ask.Low, Boundary: ask.At, High: ask.High, Peers: ask.Peers, Successors: ask.Successors,
		QoE: qoe, Local: running,
	}
	if next, replicas := b.Successors(now); replicas > 0 {
		out.Next = extendSet(next, replicas, ask.Successors)
	} else {
		out.Next = sequences(ask.Next)
	}
	return out, true
}

// extendSet returns the requests that all replicas of a stage run, given those of the known
// replicas: the others are assumed to run as many like them. It returns at most maxSequences.
func extendSet(running []policies.Sequence, known, all int) []policies.Sequence {
	n := len(running)
	for more := min(n*max(all-known, 0)/known, maxSequences-n); more > 0; more-- {
		running = append(running, running[len(running)-n])
	}
	return running
}

// sequences expands each bucket's batch to as many sequences of its mean lengths, scaled
// down to at most maxSequences.
func sequences(batches []policies.Batch) []policies.Sequence {
	total := 0.0
	for _, b := range batches {
		if validBatch(b) {
			total += b.N
		}
	}
	share := min(1, maxSequences/max(total, 1))
	var out []policies.Sequence
	for _, b := range batches {
		if !validBatch(b) {
			continue
		}
		s := policies.Sequence{Input: policies.Tokens(math.Round(b.SumI / b.N)), Length: policies.Tokens(math.Round(b.SumL / b.N))}
		for range int(math.Round(float64(b.N * share))) {
			out = append(out, s)
		}
	}
	return out
}

// validBatch reports whether a batch is not empty and its numbers are usable.
func validBatch(b policies.Batch) bool {
	const most = 1 << 50
	return b.N > 0 && b.N < most && b.SumI >= 0 && b.SumL >= 0 && b.SumI/b.N < most && b.SumL/b.N < most
}
