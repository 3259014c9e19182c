package evaluation

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
)

// Prediction is the errors of predicted normalised latencies, relative to the measured ones.
type Prediction struct {
	Requests int `json:"requests"` // that were predicted
	// Regressed is by the QoE model whose coefficients are fitted to other requests of the run, as in the paper;
	// Derived by those that the profile implies, which the planner uses; Static by the mean of the others.
	Regressed Errors `json:"regressed"`
	Derived   Errors `json:"derived"`
	Static    Errors `json:"static"`
}

// Errors are means and quantiles of absolute values, and the distribution of signed errors.
type Errors struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	// Shares are the shares of predictions by signed error, from −100 % on in steps of errorStep; larger ones count
	// in the last.
	Shares [errorBins]float64 `json:"shares"`
}

const (
	errorStep = 0.1
	errorBins = 30
)

// predict fits the paper's QoE model to every second request of a replica, and predicts the others. The average
// loads are those of the requests that were measured, with each answer divided into a few equal parts.
func predict(records []replay.Record, p cost.Profile) (out Prediction, err error) {
	var log profiling.Log
	for i := range records {
		r := &records[i]
		if r.Error != "" || r.Tokens < 1 {
			continue
		}
		q := profiling.Request{Prompt: r.Input, Output: policies.Tokens(r.Tokens), Start: r.Due, First: r.Due + r.TTFT, End: r.Due + r.E2E}
		const parts = 8 // of an answer: tokens that come one by one would be as many states
		if steps := min(parts, r.Tokens-1); steps > 0 {
			for range steps {
				q.Steps = append(q.Steps, int64((r.Last-r.TTFT)*1e6)/steps)
			}
		}
		log.Requests = append(log.Requests, q)
	}
	slices.SortStableFunc(log.Requests, func(a, b profiling.Request) int { return cmp.Compare(a.Start, b.Start) })
	log.SetLoads()
	var rows []profiling.Row
	mean := 0.0
	for i, r := range log.Requests {
		if i%2 == 0 {
			rows = append(rows, profiling.Row{X: features(r), Y: r.Normalised(), Weight: 1, Group: i})
			mean += r.Normalised()
		}
	}
	if len(rows) < 20 {
		return out, nil // too few to fit: Requests stays 0
	}
	mean /= float64(len(rows))
	fit, err := profiling.NonNegative(rows)
	if err != nil {
		return out, fmt.Errorf("fit the QoE model: %w", err)
	}
	q := p.QoEModel()
	var regressed, derived, static []float64
	for i, r := range log.Requests {
		if i%2 == 0 {
			continue
		}
		x, predicted := features(r), 0.0
		for k, c := range fit.Coefficients {
			predicted += c * x[k]
		}
		implied := q.OfRequest(policies.Batch{N: r.Load.N, SumI: r.Load.SumI, SumI2: r.Load.SumI2, SumL: r.Load.SumL})
		measured := r.Normalised()
		regressed, derived, static = append(regressed, predicted/measured-1), append(derived, implied/measured-1), append(static, mean/measured-1)
	}
	return Prediction{Requests: len(static), Regressed: errorsOf(regressed), Derived: errorsOf(derived), Static: errorsOf(static)}, nil
}

// features are F_0 … F_4 of the paper, averaged over the request's life.
func features(r profiling.Request) []float64 {
	return []float64{1, r.Load.N, r.Load.SumI, r.Load.SumI2, r.Load.SumL}
}

// errorsOf describes signed relative errors.
func errorsOf(signed []float64) (e Errors) {
	absolute := make([]float64, len(signed))
	for i, v := range signed {
		absolute[i] = math.Abs(v)
		bin := min(max(int(math.Floor((v+1)/errorStep)), 0), errorBins-1)
		e.Shares[bin] += 1 / float64(len(signed))
	}
	slices.Sort(absolute)
	for _, v := range absolute {
		e.Mean += v / float64(len(absolute))
	}
	if n := len(absolute); n > 0 {
		e.P50, e.P90 = absolute[n/2], absolute[n*9/10]
	}
	return e
}
