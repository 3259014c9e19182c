// Package outlier finds replicas that carry more than their share of a stage.
//
// It compares one replica with its stage's mean, which the control plane
// returns to each replica's load report. It does not choose what to offer, nor
// to whom: the excess is an upper bound on what to sell now, and a request that
// is longer than the excess would only move the problem.
package outlier

import (
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
)

// DefaultPercent is the paper's threshold (section "Decentralized Load
// (Re)Balancing"): a quarter above the mean.
const DefaultPercent = 25

// Detector calls a replica an outlier when it carries more than Percent above
// the mean. The zero value is the paper's.
type Detector struct {
	// Percent above the mean; 0 or less means DefaultPercent.
	Percent int
	// MinExcess is the smallest excess worth a move, in tokens. On a nearly idle
	// stage every request makes an outlier. 0 means any.
	MinExcess policies.Tokens
}

var _ policies.Detector = Detector{}

// Excess implements policies.Detector: what lies above the mean, once that is
// too much. To sell down to the threshold only would make the next request an
// outlier again.
func (d Detector) Excess(own, mean policies.Tokens) policies.Tokens {
	excess := own - mean
	if mean < 0 || excess <= 0 || excess < d.MinExcess {
		return 0
	}
	percent := uint64(DefaultPercent)
	if d.Percent > 0 {
		percent = uint64(d.Percent)
	}
	// 100·excess > percent·mean, in 128 bits.
	h1, l1 := bits.Mul64(uint64(excess), 100)
	h2, l2 := bits.Mul64(uint64(mean), percent)
	if h1 > h2 || h1 == h2 && l1 > l2 {
		return excess
	}
	return 0
}
