package cost

import "github.com/cascadeinfer/cascade/policies"

// QoE is the paper's QoE model of an engine in a profile file: its coefficients, as
// regressed on the normalised latency of requests, and the error of that regression. The
// zero value says that nothing was regressed.
type QoE struct {
	D0 float64 `json:"d0"` // seconds per output token
	D1 float64 `json:"d1"` // seconds per output token and request of the batch
	D2 float64 `json:"d2"` // seconds per output token and input token of the batch
	D3 float64 `json:"d3"` // seconds per output token and squared input token of the batch
	D4 float64 `json:"d4"` // seconds per output token and token of present length in the batch
	// FitError is that of the predicted normalised latency, against requests that were not
	// used for the regression.
	FitError FitError `json:"fit_error"`
}

// Coefficients returns the coefficients as a policies.QoE.
func (q QoE) Coefficients() policies.QoE {
	return policies.QoE{D0: q.D0, D1: q.D1, D2: q.D2, D3: q.D3, D4: q.D4}
}

// MeanOutput is the output length, in tokens, over which the QoE model of a profile without a
// regression spreads a prefill: the mean of the 58,787 requests of ShareGPT, the paper's data
// set.
const MeanOutput = 324

// QoEModel returns the regressed QoE model or, where the profile has none, the model that the
// iteration model implies for requests of MeanOutput output tokens.
//
// While a request generates O tokens, each other request of its batch is replaced O/O' times
// on average, O' being the mean output of arriving requests, and each replacement delays the
// batch by one prefill. Per token that is D2·ΣI/O' and D3·ΣI²/O'; the other coefficients are
// those of an iteration. Kappa has no place in the paper's model.
func (p Profile) QoEModel() policies.QoE {
	if p.QoE != (QoE{}) {
		return p.QoE.Coefficients()
	}
	return policies.QoE{D0: p.D0, D1: p.D1, D2: p.D2 / MeanOutput, D3: p.D3 / MeanOutput, D4: p.D4}
}
