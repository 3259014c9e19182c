package profiling

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/cascadeinfer/cascade/engine/internal/leastsquares"
)

// Fitted is what Fit finds: the paper's QoE coefficients, the coefficients of an iteration, and how well both
// predict requests that were not fitted.
type Fitted struct {
	Requests int `json:"requests"` // fitted
	HeldOut  int `json:"held_out"` // requests that the errors are of

	// QoE are D_0 … D_4 of the paper: coefficients of a request's normalised latency, in seconds per token.
	QoE [5]float64 `json:"qoe"`
	// D0 … D4 are the coefficients of an iteration, as in a cost.Profile, and Kappa with its standard error.
	D0         float64  `json:"d0"`
	D1         float64  `json:"d1"`
	D2         float64  `json:"d2"`
	D3         float64  `json:"d3"`
	D4         float64  `json:"d4"`
	Kappa      float64  `json:"kappa"`
	KappaError *float64 `json:"kappa_error,omitempty"` // null: no mixed cells were measured
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
	heldOut bool
}

// Fit fits the logs. Cells in which requests queued, and requests that were cut, are ignored.
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
				samples = append(samples, sample{r, &logs[i], heldOut})
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
	err := errors.Join(f.fitQoE(samples), f.fitTTFT(samples))
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
	leastsquares.Row
	known   float64 // part of the measured value that is predicted without the coefficients
	value   float64 // measured, known included
	heldOut bool
	outlier bool // not fitted; if it is held out, its error counts
}

// regress fits the terms that are not held out, and evaluates the fit on the others.
func regress(terms []term) (leastsquares.Solution, Prediction, error) {
	var rows []leastsquares.Row
	mean := 0.0
	for _, t := range terms {
		if !t.heldOut && !t.outlier {
			rows = append(rows, t.Row)
			mean += t.value
		}
	}
	s, err := leastsquares.NonNegative(rows)
	if err != nil {
		return s, Prediction{}, err
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
	return s, Prediction{summarise(model), summarise(static)}, nil
}

// fitQoE regresses the normalised latency on the average loads and minimises absolute errors, as the paper does.
func (f *Fitted) fitQoE(samples []sample) error {
	var terms []term
	for _, s := range samples {
		if s.log.Mixed {
			continue
		}
		q, l := s.Normalised(), s.Load
		terms = append(terms, term{Row: leastsquares.Row{X: []float64{1, l.N, l.SumI, l.SumI2, l.SumL}, Y: q, Weight: 1}, value: q, heldOut: s.heldOut})
	}
	solution, prediction, err := regress(terms)
	if err != nil {
		return fmt.Errorf("normalised latency: %w", err)
	}
	copy(f.QoE[:], solution.Coefficients)
	f.Normalised = prediction
	return nil
}

// fitTTFT regresses the time to the first token of requests that are alone in the engine on the tokens that
// were not cached. Engines compute a long prompt in several iterations; the number of tokens for each is the power
// of two that fits best.
func (f *Fitted) fitTTFT(samples []sample) error {
	least := math.Inf(1)
	for chunk := smallestChunk; chunk <= largestChunk; chunk *= 2 {
		var terms []term
		for _, s := range samples {
			if s.log.Batch != 1 || s.log.Mixed {
				continue
			}
			tokens, squares := s.prefill()
			t := s.First - s.Start
			x := []float64{math.Ceil(tokens / float64(chunk)), tokens, squares}
			terms = append(terms, term{Row: leastsquares.Row{X: x, Y: t, Weight: 1 / t}, value: t, heldOut: s.heldOut})
		}
		solution, prediction, err := regress(terms)
		if err != nil {
			return fmt.Errorf("time to the first token, of %d requests that were alone in the engine: %w", len(terms), err)
		}
		// Of equal fits, that without chunks.
		if solution.Squares <= least {
			least = solution.Squares
			f.FirstToken, f.D2, f.D3 = solution.Coefficients[0], solution.Coefficients[1], solution.Coefficients[2]
			f.Chunk, f.TTFT = chunk, prediction
		}
	}
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
	mixed := false
	for _, s := range samples {
		if _, ok := timelines[s.log]; !ok {
			timelines[s.log] = newTimeline(*s.log)
			mixed = mixed || s.log.Mixed
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
		if mixed {
			x = append(x, sum.spread/sum.n)
		}
		byCell[s.log] = append(byCell[s.log], len(terms))
		terms = append(terms, term{
			Row:   leastsquares.Row{X: x, Y: (sum.seconds - sum.prefill) / sum.n, Weight: math.Sqrt(sum.n)},
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
	solution, prediction, err := regress(terms)
	if err != nil {
		return fmt.Errorf("time between tokens: %w", err)
	}
	c := solution.Coefficients
	f.D0, f.D1, f.D4 = c[0], c[1], c[2]
	f.InterToken = prediction
	if mixed && f.D4 > 0 {
		// κ is the ratio of two coefficients: its error is that of a quotient.
		f.Kappa = c[3] / f.D4
		v := solution.Covariance
		e := math.Sqrt(max(0, v.At(3, 3)-2*f.Kappa*v.At(2, 3)+f.Kappa*f.Kappa*v.At(2, 2))) / f.D4
		f.KappaError = &e
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
