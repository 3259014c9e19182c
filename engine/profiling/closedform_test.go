package profiling

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// queue is an engine in virtual time with the iteration model of a profile. Prompts are computed in chunks, as in
// the emulator, together with the decoding requests.
type queue struct {
	cost.Profile
	log     Log
	now     float64
	running []*Request
	left    map[*Request]policies.Tokens // of the prompts
}

const promptChunk = 8192

// serve runs until so many requests have ended. next returns the request that starts next, if one does; one that
// comes later has a later Start.
func (q *queue) serve(ended int, next func(now float64, running int) (r Request, starts bool)) {
	q.left = make(map[*Request]policies.Tokens)
	for len(q.log.Requests) < ended {
		for len(q.running) < q.MaxBatch {
			r, starts := next(q.now, len(q.running))
			if !starts && len(q.running) == 0 {
				q.now = r.Start
			}
			if !starts {
				break
			}
			q.running, q.left[&r] = append(q.running, &r), r.Prompt
		}
		if len(q.running) > 0 {
			q.iterate()
		}
	}
	for _, r := range q.running {
		if r.First > 0 {
			r.End, r.Cut = q.now, true
			q.log.Requests = append(q.log.Requests, *r)
		}
	}
	q.log.Running = q.log.Batch
	q.log.SetLoads()
}

// iterate is one iteration of the engine.
func (q *queue) iterate() {
	var it cost.Iteration
	var first []*Request
	for _, r := range q.running {
		if r.First > 0 {
			length := r.Prompt + policies.Tokens(1+len(r.Steps))
			it.Decodes, it.Held, it.Longest = it.Decodes+1, it.Held+length, max(it.Longest, length)
			continue
		}
		start := r.Prompt - q.left[r]
		n := min(q.left[r], promptChunk-it.Prefill)
		it.Prefill, it.Prefill2 = it.Prefill+n, it.Prefill2+float64(start+n)*float64(start+n)-float64(start)*float64(start)
		if q.left[r] -= n; q.left[r] == 0 {
			first = append(first, r)
		}
	}
	step := int64(math.Round(q.Seconds(it) * 1e6))
	q.now += float64(step) * 1e-6
	for _, r := range q.running {
		if r.First > 0 {
			r.Steps = append(r.Steps, step)
		}
	}
	for _, r := range first {
		r.First = q.now
	}
	q.running = slices.DeleteFunc(q.running, func(r *Request) bool {
		if r.First == 0 || 1+len(r.Steps) < int(r.Output) {
			return false
		}
		r.End = q.now
		q.log.Requests = append(q.log.Requests, *r)
		delete(q.left, r)
		return true
	})
}

// meanError is the mean relative error of the normalised latency that a QoE model predicts.
func meanError(logs []Log, q policies.QoE) float64 {
	sum, n := 0.0, 0.0
	for _, l := range logs {
		for _, r := range l.Requests {
			if !r.Cut {
				f := r.Load
				sum += math.Abs((q.D0+q.D1*f.N+q.D2*f.SumI+q.D3*f.SumI2+q.D4*f.SumL)/r.Normalised() - 1)
				n++
			}
		}
	}
	return sum / n
}

// TestClosedFormIsCloser regresses the QoE model of every built-in profile on the paper's grid, with as many output
// tokens on average as the closed form assumes, and predicts ShareGPT's requests at three rates by both. A profile
// for which the regression is closer should contain it.
func TestClosedFormIsCloser(t *testing.T) {
	testkit.SkipSlow(t)
	shareGPT, _ := trace.Named("sharegpt")
	shareGPT.Requests, shareGPT.Seed = 20_000, 3
	requests := testkit.Must(shareGPT.Generate())
	for _, name := range cost.Names() {
		p := testkit.Must(cost.Builtin(name))
		rng := rand.New(rand.NewPCG(1, 1))
		g := Grid{Shortest: 100, Longest: 25600, Factor: 2, MaxBatch: p.MaxBatch, Output: cost.MeanOutput, KVTokens: p.KVTokens}
		var grid, traffic []Log
		for _, c := range g.Cells() {
			q := queue{Profile: p, log: Log{Cell: c}}
			q.serve(max(20, 2*c.Batch), func(now float64, running int) (Request, bool) {
				if running == c.Batch {
					return Request{}, false
				}
				return Request{Prompt: c.Prompt(0, rng), Output: g.OutputLength(rng), Start: now}, true
			})
			grid = append(grid, q.log)
		}
		for _, batch := range []float64{8, 32, 96} { // about so many will run at once
			rate := batch / (cost.MeanOutput * (p.D0 + batch*(p.D1+400*p.D4)))
			q := queue{Profile: p}
			due := 0.0
			q.serve(1200, func(now float64, _ int) (Request, bool) {
				r := Request{Start: due}
				if due > now {
					return r, false
				}
				due += rng.ExpFloat64() / rate
				drawn := requests[rng.IntN(len(requests))]
				r.Prompt, r.Output = drawn.Input, max(2, drawn.Output)
				return r, true
			})
			traffic = append(traffic, q.log)
		}
		f := testkit.Must(Fit(grid, FitOptions{}))
		regressed := policies.QoE{D0: f.QoE[0], D1: f.QoE[1], D2: f.QoE[2], D3: f.QoE[3], D4: f.QoE[4]}
		closed, fitted := meanError(traffic, p.QoEModel()), meanError(traffic, regressed)
		t.Logf("%s: mean error on ShareGPT: closed form %.1f %%, regressed %.1f %% (%.1f %% on held-out requests of its grid, %.1f %% by the closed form)",
			name, 100*closed, 100*fitted, 100*f.Normalised.Model.Mean, 100*meanError(grid, p.QoEModel()))
		if fitted < closed && p.QoE == (cost.QoE{}) {
			t.Errorf("%s: the regression %+v is closer: ship it as qoe", name, regressed)
		}
	}
}
