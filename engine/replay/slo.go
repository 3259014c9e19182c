package replay

import (
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/trace"
)

// SLO is a latency objective: the time to the first token and between tokens that a request has when
// it is alone, in seconds. The zero SLO is none.
type SLO struct {
	TTFT float64 `json:"ttft"`
	TPOT float64 `json:"tpot"`
}

// simulatedChunk is the prompt tokens that an iteration computes at most: the simulator's default.
const simulatedChunk = 8192

// Alone returns the mean latency of requests that have an engine for themselves, by the cost model: the SLO whose
// multiples are shown.
func Alone(p cost.Profile, requests []trace.Request) (slo SLO) {
	n := float64(len(requests))
	for _, r := range requests {
		ttft, tpot := p.Alone(r.Input, r.Output, simulatedChunk)
		slo.TTFT, slo.TPOT = slo.TTFT+ttft/n, slo.TPOT+tpot/n
	}
	return slo
}

// Multiples are the multiples of an SLO for which attainment is shown, as in the paper.
var Multiples = [...]float64{5, 10, 20}

// Attainment counts the requests that were within the multiples of an SLO.
type Attainment struct {
	SLO SLO `json:"slo"`
	// Shares are the shares of the requests, failed ones included, whose TTFT and TPOT were both within
	// each of Multiples.
	Shares [len(Multiples)]float64 `json:"shares"`

	requests int
	within   [len(Multiples)]int
}

// Add counts a request that has ended, whose times run speed times as fast as those of the SLO.
func (a *Attainment) Add(r *Record, speed float64) {
	a.requests++
	perToken, _ := r.TPOT() // 0 for answers of one token
	for i, times := range Multiples {
		if r.Error == "" && r.TTFT*speed <= times*a.SLO.TTFT && perToken*speed <= times*a.SLO.TPOT {
			a.within[i]++
		}
		a.Shares[i] = float64(a.within[i]) / float64(a.requests)
	}
}
