package fleet

import (
	"math"

	"github.com/cascadeinfer/cascade/policies/length"
)

const (
	// ratioStep is the quotient of two neighbouring ratios that may be served. RDS
	// carries byte ranges computed from the ratio: every change costs a route table.
	ratioStep = 1.05
	// ratioHysteresis is the distance, in steps, between the learnt and the served
	// ratio from which on the served one changes.
	ratioHysteresis = 1
)

// nextRatio returns the bytes per token to serve: the learnt ratio on a grid of
// 5 % steps, or the served one while the learnt one is within a step of it. A learnt
// ratio of 0 or less is unknown. nextRatio is pure.
func nextRatio(served, learnt length.Ratio) length.Ratio {
	if learnt <= 0 {
		return served
	}
	learnt = learnt.Clamp()
	distance := math.Log(learnt.Float()/served.Clamp().Float()) / math.Log(ratioStep)
	if served > 0 && math.Abs(distance) < ratioHysteresis {
		return served
	}
	n := math.Round(math.Log(learnt.Float()) / math.Log(ratioStep))
	return length.RatioOf(math.Pow(ratioStep, n))
}
