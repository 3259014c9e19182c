package balance

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// NeutralWeight is the weight of a replica whose load is unknown, and of every replica of
// a balanced stage of equal replicas. In a stage of unequal replicas, the neutral
// weight of each is in proportion to its KV cache.
const NeutralWeight = 100

// WeightInterval is the least time between two calls of NextWeights for a stage.
const WeightInterval = policies.Second

// WeightSteps are the only weights that are ever served: half octaves around NeutralWeight.
// Coarse steps keep EDS quiet, and their ends bound what a false report can gain
// (four shares) or lose (a quarter share).
var WeightSteps = [...]uint32{25, 35, 50, 71, 100, 141, 200, 283, 400}

const neutralStep = len(WeightSteps) / 2

// hysteresis is how far, in steps, a replica's target must be from its present
// weight before the weight changes: more than half a step, so that a load between
// two steps does not flap.
const hysteresis = 0.75

// Member is one replica of a stage, as far as NextWeights needs it.
type Member struct {
	ID policies.ReplicaID
	// Work is the tokens that the replica holds and has promised to hold.
	Work policies.Tokens
	// KV is its KV cache in tokens, relative to which Work is small or large.
	KV policies.Tokens
	// Known says that Work is known (Estimate.Source). A replica without it
	// keeps its weight and does not count for the mean.
	Known bool
	// Requests are in progress at the proxies; Counted says that Work was derived
	// from them and only compares such replicas with each other.
	Requests int
	Counted  bool
	// Drift moves a replica whose Work is unknown a step towards its neutral weight. While
	// others of the stage are known, it moves up only if it is Distrusted: silence is no
	// spare capacity.
	Drift      bool
	Distrusted bool // its Work is unknown because its reports are ignored
	// Weight is served now; a number that is not in WeightSteps, such as 0, stands for
	// NeutralWeight.
	Weight uint32
}

// NewMember returns the input of NextWeights for a replica whose load was estimated. ready says that
// it takes requests, and weight is its present one.
func NewMember(r policies.Replica, e Estimate, ready bool, weight uint32) Member {
	return Member{
		ID: r.ID, Work: e.Work, KV: r.Capacity.KV, Weight: weight,
		Known:    ready && e.Source != Unknown,
		Requests: e.Requests, Counted: e.Counted, Drift: e.Drift, Distrusted: e.Distrusted != "",
	}
}

// NextWeights returns the next weight of each replica of one stage. New requests are
// shared out so that all replicas come to use the same part of their KV caches: a
// replica gets more of them the larger its cache is, up to four times the stage's median,
// and the less of it is in use compared with the stage. NextWeights is pure.
func NextWeights(stage []Member) map[policies.ReplicaID]uint32 {
	stage = onOneScale(boundCaches(stage))
	var work, caches, all float64
	known := 0
	for _, r := range stage {
		all += cache(r)
		if r.Known {
			work += BoundedWork(r.Work, r.KV)
			caches += cache(r)
			known++
		}
	}
	out := make(map[policies.ReplicaID]uint32, len(stage))
	for _, r := range stage {
		step := stepOf(r.Weight)
		// size is the half octaves above NeutralWeight that the replica's size is worth.
		size := 2 * math.Log2(cache(r)*float64(len(stage))/all)
		switch present := float64(step - neutralStep); {
		case r.Known && known > 1:
			// Below 1/32 of a KV cache, differences are single requests: noise.
			small := 1./32 + float64(known)/caches
			target := size + 2*math.Log2((work/caches+small)/(BoundedWork(r.Work, r.KV)/cache(r)+small))
			step = towards(step, target-present)
		case r.Drift && !r.Known && (size < present || r.Distrusted || known == 0):
			step = towards(step, size-present)
		}
		out[r.ID] = WeightSteps[step]
	}
	return out
}

// ValidWeight returns the weight if it is one of WeightSteps, and NeutralWeight otherwise.
func ValidWeight(weight uint32) uint32 { return WeightSteps[stepOf(weight)] }

// BoundedWork bounds a replica's reported tokens by twice its KV cache, so that one
// absurd report cannot raise the mean of a whole stage.
func BoundedWork(work, kv policies.Tokens) float64 {
	return float64(min(max(work, 0), 2*max(kv, 1)))
}

// maxCache bounds a replica's cache, which may be a false report, as a multiple of the stage's
// median: to four shares, as WeightSteps do.
const maxCache = 4

// boundCaches bounds the caches of a stage. It returns a new slice when it changes anything.
func boundCaches(stage []Member) []Member {
	if len(stage) == 0 {
		return nil
	}
	caches := make([]policies.Tokens, len(stage))
	for i, r := range stage {
		caches[i] = max(r.KV, 1)
	}
	slices.Sort(caches)
	bound := maxCache * caches[(len(caches)-1)/2]
	if caches[len(caches)-1] <= bound {
		return stage
	}
	stage = slices.Clone(stage)
	for i := range stage {
		stage[i].KV = min(stage[i].KV, bound)
	}
	return stage
}

// towards returns the step that follows step on the way to a target at this distance.
func towards(step int, distance float64) int {
	switch {
	case distance > hysteresis:
		return min(step+1, len(WeightSteps)-1)
	case distance < -hysteresis:
		return max(step-1, 0)
	}
	return step
}

// onOneScale converts the work of replicas that was derived from their requests to
// the scale of those that count tokens, by the replicas of the stage for which both
// are known. It returns a new slice when it changes anything.
func onOneScale(stage []Member) []Member {
	var tokens, requests float64
	counted := false
	for _, r := range stage {
		counted = counted || r.Known && r.Counted
		if r.Known && !r.Counted && r.Requests > 0 {
			tokens += BoundedWork(r.Work, r.KV)
			requests += float64(r.Requests)
		}
	}
	if !counted || requests == 0 {
		return stage
	}
	stage = slices.Clone(stage)
	for i, r := range stage {
		if r.Known && r.Counted {
			stage[i].Work = policies.Tokens(float64(float64(r.Requests) * tokens / requests))
		}
	}
	return stage
}

func cache(r Member) float64 { return float64(max(r.KV, 1)) }

// stepOf returns the index of a weight in WeightSteps, or the index of NeutralWeight if the weight
// is not in WeightSteps.
func stepOf(weight uint32) int {
	for i, s := range WeightSteps {
		if s == weight {
			return i
		}
	}
	return neutralStep
}
