package fleet

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Neutral is the EDS weight of a replica about which nothing is known, and of
// every replica of a balanced stage whose replicas are alike. Where they are
// not, the neutral weight of one is in proportion to its KV cache.
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
	// Fresh says that Work is known and believed (see package load). Without it
	// the replica keeps its weight and does not count for the mean.
	Fresh bool
	// Requests are in progress at the proxies; Counted says that Work is only
	// their number on some scale.
	Requests int
	Counted  bool
	// Drift moves a replica that is not Fresh a step towards its neutral weight.
	Drift bool
	// Weight is served now; 0 means that none was yet, as does any number that
	// Weights never returns.
	Weight uint32
}

// Weights returns the next EDS weight of each replica of one stage: new
// requests are shared out so that all come to use the same part of their KV
// caches. A replica gets more of them the larger its cache is, and the less of
// it is in use compared with the stage, but one step per call at most, and
// never less than the first or more than the last step. Called at most once a
// second, a burst of false reports can therefore do little before it is over.
// Weights is pure.
func Weights(stage []Loaded) map[policies.ReplicaID]uint32 {
	stage = onOneScale(stage)
	var sum, caches, all float64
	fresh := 0
	for _, r := range stage {
		all += cache(r)
		if r.Fresh {
			sum += work(r)
			caches += cache(r)
			fresh++
		}
	}
	out := make(map[policies.ReplicaID]uint32, len(stage))
	for _, r := range stage {
		at := stepOf(r.Weight)
		// Half octaves above Neutral that the replica's size is worth.
		size := 2 * math.Log2(cache(r)*float64(len(stage))/all)
		switch now := float64(at - neutralStep); {
		case r.Fresh && fresh > 1:
			// Below 1/32 of a KV cache, differences are single requests: noise.
			small := 1./32 + float64(fresh)/caches
			wish := size + 2*math.Log2((sum/caches+small)/(work(r)/cache(r)+small))
			at = towards(at, wish-now)
		case r.Drift && !r.Fresh:
			at = towards(at, size-now)
		}
		out[r.ID] = steps[at]
	}
	return out
}

// towards is the step after one towards a wish that is so far away.
func towards(at int, far float64) int {
	switch {
	case far > hold:
		return min(at+1, len(steps)-1)
	case far < -hold:
		return max(at-1, 0)
	}
	return at
}

// onOneScale puts works that were counted from requests on the scale of those
// that are tokens, by the replicas of the stage of which both are known. It
// returns a stage of its own when it changes anything.
func onOneScale(stage []Loaded) []Loaded {
	var tokens, requests float64
	counted := false
	for _, r := range stage {
		counted = counted || r.Fresh && r.Counted
		if r.Fresh && !r.Counted && r.Requests > 0 {
			tokens += work(r)
			requests += float64(r.Requests)
		}
	}
	if !counted || requests == 0 {
		return stage
	}
	stage = slices.Clone(stage)
	for i, r := range stage {
		if r.Fresh && r.Counted {
			stage[i].Work = policies.Tokens(float64(float64(r.Requests) * tokens / requests))
		}
	}
	return stage
}

// work bounds a replica's claim by twice its cache, so that one absurd report
// cannot lift the mean of a whole stage.
func work(r Loaded) float64 {
	return float64(min(max(r.Work, 0), 2*max(r.KV, 1)))
}

func cache(r Loaded) float64 { return float64(max(r.KV, 1)) }

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
