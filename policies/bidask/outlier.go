package bidask

import (
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
)

// DefaultPercent is the paper's threshold (section "Decentralized Load
// (Re)Balancing"): a quarter above the mean.
const DefaultPercent = 25

// Detector calls a replica an outlier if its load exceeds its stage's mean by more than
// Percent. The zero value has the paper's threshold.
//
// It does not choose which request to sell, or to which replica: the excess is an upper bound
// on what to sell now, because a request longer than the excess would only move the problem.
type Detector struct {
	// Percent above the mean; 0 or less means DefaultPercent.
	Percent int
}

var _ policies.Detector = Detector{}

// Excess implements policies.Detector. It returns the whole load above the mean, once
// that is too much: selling only down to the threshold would make the next request an
// outlier again.
func (d Detector) Excess(own, mean policies.Tokens) policies.Tokens {
	excess := own - mean
	if mean < 0 || excess < 1 {
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
