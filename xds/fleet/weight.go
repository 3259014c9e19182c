package fleet

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// Neutral is the EDS weight of a replica about which nothing is known, and of
// every replica of a balanced stage.
const Neutral = 100

// steps are the only weights that are ever served: half octaves around
// Neutral. Coarse steps keep EDS quiet, and their ends bound what a report
// that lies can gain (four shares) or lose (a quarter share).
var steps = [...]uint32{25, 35, 50, 71, 100, 141, 200, 283, 400}

// hold is how far, in steps, a replica's wish must be from its present weight
// before the weight moves: more than half a step, so that a load between two
// steps does not flap.
const hold = 0.75

// Loaded is what Weights knows of one replica of a stage.
type Loaded struct {
	ID policies.ReplicaID
	// Work is the tokens that the replica holds and has promised to hold.
	Work policies.Tokens
	// KV is its KV cache, in tokens: the scale on which Work is small or large.
	KV policies.Tokens
	// Fresh says that Work comes from a report that is not late. Without it
	// the replica keeps its weight and does not count for the mean.
	Fresh bool
	// Weight is served now; 0 means that none was yet, as does any number that
	// Weights never returns.
	Weight uint32
}

// Weights returns the next EDS weight of each replica of one stage: a replica
// with more work than the stage's mean gets a smaller share of new requests,
// in inverse proportion, but one step per call at most, and never less than
// the first or more than the last step. Called at most once a second, a burst
// of false reports can therefore do little before it is over. Weights is pure.
func Weights(stage []Loaded) map[policies.ReplicaID]uint32 {
	var sum, floor float64
	fresh := 0
	for _, r := range stage {
		if r.Fresh {
			sum += work(r)
			// Below 1/32 of a KV cache, differences are single requests: noise.
			floor += float64(r.KV) / 32
			fresh++
		}
	}
	out := make(map[policies.ReplicaID]uint32, len(stage))
	for _, r := range stage {
		at := stepOf(r.Weight)
		if r.Fresh && fresh > 1 {
			small := floor/float64(fresh) + 1
			wish := 2 * math.Log2((sum/float64(fresh)+small)/(work(r)+small))
			switch now := float64(at - neutralStep); {
			case wish > now+hold:
				at = min(at+1, len(steps)-1)
			case wish < now-hold:
				at = max(at-1, 0)
			}
		}
		out[r.ID] = steps[at]
	}
	return out
}

// work bounds a replica's claim by twice its cache, so that one absurd report
// cannot lift the mean of a whole stage.
func work(r Loaded) float64 {
	return float64(min(max(r.Work, 0), 2*max(r.KV, 1)))
}

const neutralStep = len(steps) / 2

// stepOf returns the index of a served weight; an unknown one is Neutral.
func stepOf(weight uint32) int {
	for i, s := range steps {
		if s == weight {
			return i
		}
	}
	return neutralStep
}
