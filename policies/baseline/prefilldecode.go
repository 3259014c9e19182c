package baseline

import (
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
)

// PrefillDecode serves a fleet that is split for ever: some replicas compute prompts, the others
// generate, as DistServe (Zhong et al., OSDI 2024) and the disaggregated modes of vLLM and SGLang do. A
// request starts on the prefill replica with the fewest prompt tokens waiting, which sends its first
// token; then its whole KV is transferred to the decode replica with the least load, which generates
// the rest (DistServe, section 4.3: the shortest queue, then the least loaded decode instance).
type PrefillDecode struct{}

var _ Disaggregator = PrefillDecode{}

// Route implements Router. Replicas are the prefill replicas, whose Load is what waits there.
func (PrefillDecode) Route(r Request, replicas []Replica, rng *rand.Rand) int {
	return LeastLoad{}.Route(r, replicas, rng)
}

// RouteDecode implements Disaggregator.
func (PrefillDecode) RouteDecode(_ policies.Tokens, replicas []Replica) int {
	return LeastLoad{}.Route(Request{}, replicas, nil)
}

// DefaultPrefillReplicas is how many replicas of a fleet compute prompts where nothing else is
// configured: half of them, as in the one-to-one examples of vLLM.
func DefaultPrefillReplicas(fleet int) int { return fleet / 2 }
