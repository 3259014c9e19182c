package profiling

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Fitted is what Fit finds: the paper's QoE coefficients, the coefficients of an iteration, and how well both
// predict requests that were not fitted.
type Fitted struct {
	Requests int `json:"requests"` // fitted
	HeldOut  int `json:"held_out"` // requests that the errors are of

	Bursty int `json:"bursty"` // cells of which only the normalised latency is fitted: see Log.Bursty

	// QoE are D_0 … D_4 of the paper: coefficients of a request's normalised latency, in seconds per token.
	QoE [5]float64 `json:"qoe"`
	// D0 … D4 and Kappa are the coefficients of an iteration, as in a cost.Profile.
	D0    float64 `json:"d0"`
	D1    float64 `json:"d1"`
	D2    float64 `json:"d2"`
	D3    float64 `json:"d3"`
	D4    float64 `json:"d4"`
	Kappa float64 `json:"kappa"`
	Mixed bool    `json:"mixed"` // cells for Kappa were measured
	// StandardErrors are those of QoE, D0 … D4 and Kappa.
	StandardErrors StandardErrors `json:"standard_errors"`
	// FirstToken is what an iteration with a prompt takes besides its tokens, the engine's server included, and
	// Chunk the number of prompt tokens that an iteration computes at most.
	FirstToken float64 `json:"first_token"`
	Chunk      int     `json:"chunk"`

	Normalised Prediction `json:"normalised_latency"`  // by QoE
	InterToken Prediction `json:"time_between_tokens"` // by the iteration's coefficients
	TTFT       Prediction `json:"time_to_first_token"` // of requests that are alone in the engine
}

// Prediction is the errors of a fitted model and of the static predictor, which always predicts the mean of the
// fitted requests.
type Prediction struct {
	Model  Errors `json:"model"`
	Static Errors `json:"static"`
}

// FitOptions are the options of Fit; the zero value is usable.
type FitOptions struct {
	// HeldOut is the share of the requests that are not fitted. 0 means 0.2.
	HeldOut float64
	// Seed chooses them.
	Seed uint64
}

// sample is a request with its cell.
type sample struct {
	Request
	log     *Log
	cell    int
	heldOut bool
}

// Fit fits the logs. Cells in which requests queued, and requests that were cut, are ignored. Cells whose tokens
// came in bursts count only for the normalised latency.
func Fit(logs []Log, o FitOptions) (Fitted, error) {
	if o.HeldOut == 0 {
		o.HeldOut = 0.2
	}
	if o.HeldOut < 0 || o.HeldOut >= 1 {
		return Fitted{}, fmt.Errorf("fit: the share of held-out requests is %v; it must be at least 0 and less than 1", o.HeldOut)
	}
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	var samples []sample
	for i := range logs {
		for _, r := range logs[i].Requests {
			heldOut := rng.Float64() < o.HeldOut
			if !logs[i].Queued() && !r.Cut && r.First > r.Start && r.End >= r.First && r.Output > 0 {
				samples = append(samples, sample{r, &logs[i], i, heldOut})
			}
		}
	}
	var f Fitted
	for _, s := range samples {
		if s.heldOut {
			f.HeldOut++
		} else {
			f.Requests++
		}
	}
	if f.Requests == 0 {
		return Fitted{}, errors.New("fit: the record has no complete request of a cell without a queue")
	}
	if f.HeldOut == 0 {
		return Fitted{}, errors.New("fit: too few requests to hold some out; measure for longer")
	}
	err := f.fitQoE(samples)
	if err == nil {
		samples, err = f.leaveOutBursts(samples)
	}
	if err == nil {
		err = f.fitTTFT(samples)
	}
	if err == nil {
		err = f.fitInterToken(samples)
	}
	if err != nil {
		return Fitted{}, fmt.Errorf("fit: %w", err)
	}
	return f, nil
}

// term is one measurement of a model.
type term struct {
	Row
	known   float64 // part of the measured value that is predicted without the coefficients
	value   float64 // measured, known included
	heldOut bool
	outlier bool // not fitted; if it is held out, its error counts
}

// regression is a fit of terms.
type regression struct {
	Solution
	Prediction
	rows []Row // that were fitted
}

// regress fits the terms that are not held out, and evaluates the fit on the others.
func regress(terms []term) (regression, error) {
	var rows []Row
	mean := 0.0
	for _, t := range terms {
		if !t.heldOut && !t.outlier {
			rows = append(rows, t.Row)
			mean += t.value
		}
	}
	s, err := NonNegative(rows)
	if err != nil {
		return regression{}, err
	}
	mean /= float64(len(rows))
	var model, static []float64
	for _, t := range terms {
		if !t.heldOut {
			continue
		}
		predicted := t.known
		for i, x := range t.X {
			predicted += x * s.Coefficients[i]
		}
		model = append(model, (predicted-t.value)/t.value)
		static = append(static, (mean-t.value)/t.value)
	}
	return regression{s, Prediction{summarise(model), summarise(static)}, rows}, nil
}

// fitQoE regresses the normalised latency on the average loads and minimises absolute errors, as the paper does.
func (f *Fitted) fitQoE(samples []sample) error {
	var terms []term
	for _, s := range samples {
		if s.log.Mixed {
			continue
		}
		q, l := s.Normalised(), s.Load
		terms = append(terms, term{Row: Row{X: []float64{1, l.N, l.SumI, l.SumI2, l.SumL}, Y: q, Weight: 1, Group: s.cell}, value: q, heldOut: s.heldOut})
	}
	r, err := regress(terms)
	if err != nil {
		return fmt.Errorf("normalised latency: %w", err)
	}
	copy(f.QoE[:], r.Coefficients)
	copy(f.StandardErrors.QoE[:], r.standardErrors())
	f.Normalised = r.Prediction
	return nil
}

// leaveOutBursts returns the samples of the cells whose tokens did not come in bursts, and counts the others.
func (f *Fitted) leaveOutBursts(samples []sample) ([]sample, error) {
	bursty := make(map[*Log]bool)
	for _, s := range samples {
		if _, ok := bursty[s.log]; !ok {
			bursty[s.log] = s.log.Bursty()
			if bursty[s.log] {
				f.Bursty++
			}
		}
	}
	if f.Bursty == len(bursty) {
		return nil, errors.New("in every cell most tokens came in bursts: measure the engine itself, without a proxy that collects tokens, on a machine that does little else")
	}
	return slices.DeleteFunc(samples, func(s sample) bool { return bursty[s.log] }), nil
}

// fitTTFT regresses the time to the first token of requests that are alone in the engine on the tokens that
// were not cached. Engines compute a long prompt in several iterations; the number of tokens for each is the power
// of two that fits best.
func (f *Fitted) fitTTFT(samples []sample) error {
	best := regression{Solution: Solution{Squares: math.Inf(1)}}
	for chunk := smallestChunk; chunk <= largestChunk; chunk *= 2 {
		var terms []term
		for i, s := range samples {
			if s.log.Batch != 1 || s.log.Mixed {
				continue
			}
			tokens, squares := s.prefill()
			// Requests that are alone share no iteration: each is a group of its own.
			t := s.First - s.Start
			x := []float64{math.Ceil(tokens / float64(chunk)), tokens, squares}
			terms = append(terms, term{Row: Row{X: x, Y: t, Weight: 1 / t, Group: i}, value: t, heldOut: s.heldOut})
		}
		r, err := regress(terms)
		if err != nil {
			return fmt.Errorf("time to the first token, of %d requests that were alone in the engine: %w", len(terms), err)
		}
		if r.Squares <= best.Squares { // of equal fits, that without chunks
			best, f.Chunk = r, chunk
		}
	}
	e := best.standardErrors()
	f.FirstToken, f.D2, f.D3 = best.Coefficients[0], best.Coefficients[1], best.Coefficients[2]
	f.StandardErrors.D2, f.StandardErrors.D3 = e[1], e[2]
	f.TTFT = best.Prediction
	return nil
}

// Chunks of prompts are at least and at most so long.
const (
	smallestChunk = 256
	largestChunk  = 1 << 20
)

// prefill returns the prompt tokens that were computed, and their part of the squared length.
func (r Request) prefill() (tokens, squares float64) {
	i, cached := float64(r.Prompt), float64(r.Cached)
	return i - cached, i*i - cached*cached
}

// fitInterToken regresses the mean time between a request's tokens on the means over its iterations: decoding
// requests, held tokens, and, where mixed cells were measured, longest less mean length. What other requests'
// prefills took meanwhile is subtracted, by D2 and D3.
func (f *Fitted) fitInterToken(samples []sample) error {
	timelines := make(map[*Log]timeline)
	for _, s := range samples {
		if _, ok := timelines[s.log]; !ok {
			timelines[s.log] = newTimeline(*s.log)
			f.Mixed = f.Mixed || s.log.Mixed
		}
	}
	var terms []term
	byCell := make(map[*Log][]int) // indices of terms
	for _, s := range samples {
		run, sum := steps{}, steps{}
		times := s.tokenTimes()
		for i, at := range times[1:] {
			work, known := f.prefillIn(s, times[max(0, i-1)], times[i], at)
			// The batch of an iteration is that in its middle: its tokens come at its end, not all at one time.
			now := timelines[s.log].at((times[i] + at) / 2)
			if known = known && now.decoding > 0; known {
				run = run.plus(steps{1, at - times[i], work, float64(now.decoding), now.held, now.longest - now.held/float64(now.decoding)})
			}
			if last := i == len(times)-2; !known || last {
				if run.n >= minRun {
					sum = sum.plus(run)
				}
				run = steps{}
			}
		}
		if sum.n < minSteps || sum.seconds <= 0 {
			continue
		}
		x := []float64{1, sum.decoding / sum.n, sum.held / sum.n}
		if f.Mixed {
			x = append(x, sum.spread/sum.n)
		}
		byCell[s.log] = append(byCell[s.log], len(terms))
		terms = append(terms, term{
			Row:   Row{X: x, Y: (sum.seconds - sum.prefill) / sum.n, Weight: math.Sqrt(sum.n), Group: s.cell},
			known: sum.prefill / sum.n, value: sum.seconds / sum.n, heldOut: s.heldOut,
		})
	}
	for _, indices := range byCell {
		slices.SortFunc(indices, func(a, b int) int { return cmp.Compare(terms[a].value, terms[b].value) })
		median := terms[indices[len(indices)/2]].value
		for _, i := range indices {
			terms[i].Weight /= median
			terms[i].outlier = terms[i].value > outlierFactor*median || terms[i].value*outlierFactor < median
		}
	}
	r, err := regress(terms)
	if err != nil {
		return fmt.Errorf("time between tokens: %w", err)
	}
	c, e := r.Coefficients, r.standardErrors()
	f.D0, f.D1, f.D4 = c[0], c[1], c[2]
	f.StandardErrors.D0, f.StandardErrors.D1, f.StandardErrors.D4 = e[0], e[1], e[2]
	f.InterToken = r.Prediction
	if f.Mixed {
		ratio := func(c []float64) float64 { return c[3] / c[2] }
		f.StandardErrors.Kappa = r.standardError(ratio)
		if f.D4 > 0 {
			f.Kappa = ratio(c)
		}
	}
	return nil
}

// steps are sums over iterations of one request.
type steps struct{ n, seconds, prefill, decoding, held, spread float64 }

func (a steps) plus(b steps) steps {
	return steps{a.n + b.n, a.seconds + b.seconds, a.prefill + b.prefill, a.decoding + b.decoding, a.held + b.held, a.spread + b.spread}
}

// Tokens that were delayed come together with later ones, so that single steps are too long and too short. Only
// runs of at least minRun steps are used, and only requests with at least minSteps of them.
const (
	minRun   = 4
	minSteps = 8
)

// outlierFactor is how many times slower or faster than the median of its cell a request may be to be fitted: a
// server that was not run for a while sends a whole answer at once.
const outlierFactor = 4

// prefillIn returns the seconds of other requests' prefill in an iteration of a request, and whether they are
// known. previous is the time of the token before the iteration's first, from and to are those around it.
//
// A request that is sent during one iteration is computed from the next one on. If its first token comes at the
// end of that one, it was computed there as a whole. Otherwise it waited, or was computed in parts.
func (f *Fitted) prefillIn(s sample, previous, from, to float64) (seconds float64, known bool) {
	// The tokens of one iteration do not come at exactly one time.
	late := f.FirstToken / 4
	for _, other := range s.log.Requests {
		first := other.First
		if first == 0 {
			first = other.End
		}
		if other.Start >= to || first <= from+late || other.Start == s.Start && other.Slot == s.Slot {
			continue
		}
		switch {
		case other.First > 0 && first <= to+late && other.Start >= previous-late:
			tokens, squares := other.prefill()
			seconds += f.D2*tokens + f.D3*squares
		case other.Start < from-late:
			return 0, false
		}
	}
	return seconds, true
}
