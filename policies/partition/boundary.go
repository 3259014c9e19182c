package partition

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// maxSequences bounds the sequences that represent the next stage in a refinement.
const maxSequences = 1 << 14

// Boundary describes the boundary between two stages to the replicas of the first
// one, so that their refiners can propose a better one.
type Boundary struct {
	Epoch     policies.Epoch  // of the plan; proposals for another one are ignored
	At        policies.Tokens // in force: the end of the first stage
	Low, High policies.Tokens // start of the first stage, end of the second
	// Peers and Successors count the replicas of the first and the second stage
	// that take requests; at least 1.
	Peers, Successors int
	Next              []policies.Batch // in flight on the second stage, all replicas together, by bucket
}

// BoundaryProposal is one replica's proposal for the end of its stage. A replica that sees no
// reason to move the boundary proposes the one in force; a missing proposal does not
// count.
type BoundaryProposal struct {
	Epoch    policies.Epoch // of the plan that it was made for
	Low      policies.Tokens
	Boundary policies.Tokens // 0: none
}

// View returns the input of a Refiner for the boundary. local are the requests that run on the
// own replica. next are those of the known replicas of the second stage, as many as known; with
// none, Next stands for them, with each bucket's mean. It returns false if b describes no boundary.
func (b Boundary) View(local, next []policies.Sequence, known int, qoe policies.QoE) (policies.BoundaryView, bool) {
	if b.Low < 0 || b.Low >= b.At || b.At >= b.High || b.Peers < 1 || b.Successors < 1 {
		return policies.BoundaryView{}, false
	}
	out := policies.BoundaryView{
		Low: b.Low, Boundary: b.At, High: b.High, Peers: b.Peers, Successors: b.Successors,
		QoE: qoe, Local: local,
	}
	if known > 0 {
		out.Next = extendSet(next, known, b.Successors)
	} else {
		out.Next = sequences(b.Next)
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
