package profiling

import (
	"fmt"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies"
)

// What no client of an engine can measure, and every profile needs: assumptions.
const (
	transferBase = 10e-3 // seconds
	linkRate     = 25e9  // bytes/s: 200 Gbit/s
)

// Given is what a record does not contain. Name and KVBytesPerToken are required.
type Given struct {
	Name            string
	KVBytesPerToken policies.Bytes
	KVTokens        policies.Tokens // 0: as the engine reported it
	MaxBatch        int             // 0: the most requests that ran at once
	Command         string          // that made the profile
}

// Profile returns the cost profile of the engine that was measured.
func (f Fitted) Profile(rec Record, g Given) (cost.Profile, error) {
	if g.KVTokens == 0 {
		g.KVTokens = rec.Grid.KVTokens
	}
	if g.KVTokens == 0 {
		return cost.Profile{}, fmt.Errorf("the engine did not report the size of its KV cache, in tokens: give it with --kv-tokens")
	}
	if g.MaxBatch == 0 {
		for _, l := range rec.Logs {
			g.MaxBatch = max(g.MaxBatch, min(l.Running, l.Batch))
		}
	}
	p := cost.Profile{
		Name: g.Name, Source: fmt.Sprintf("measured: %s, %s", rec.Model, rec.Started.UTC().Format("2006-01-02")), Unit: "seconds",
		Command: g.Command, Ranks: 1,
		D0: f.D0, D1: f.D1, D2: f.D2, D3: f.D3, D4: f.D4, Kappa: f.Kappa,
		KVBytesPerToken: g.KVBytesPerToken, KVTokens: g.KVTokens, MaxBatch: g.MaxBatch,
		TransferBase: transferBase, LinkRate: linkRate,
		FitError: fitError(f.InterToken.Model),
		QoE:      cost.QoE{D0: f.QoE[0], D1: f.QoE[1], D2: f.QoE[2], D3: f.QoE[3], D4: f.QoE[4], FitError: fitError(f.Normalised.Model)},
	}
	p.How = []string{
		fmt.Sprintf("measured: %d cells, prompts [%d, %d), batches up to %d, %d output tokens on average; %d requests fitted, %d held out", len(rec.Logs), rec.Grid.Shortest, rec.Grid.Longest, rec.Grid.MaxBatch, rec.Grid.Output, f.Requests, f.HeldOut),
		"d0, d1, d4 fitted: time between tokens; " + f.InterToken.String(),
		fmt.Sprintf("d2, d3 fitted: time to the first token of requests that are alone, in chunks of %d tokens; %s", f.Chunk, f.TTFT),
		"qoe fitted: normalised latency; " + f.Normalised.String(),
	}
	switch kappa := f.kappa(); {
	case !f.Mixed:
		p.How = append(p.How, "kappa not measured: 0")
	case kappa.Determined():
		p.How = append(p.How, fmt.Sprintf("kappa fitted: batches of one size and one sum of lengths, %.3g with a standard error of %.2g", kappa.Value, kappa.Error))
	default:
		p.Kappa = 0
		p.How = append(p.How, fmt.Sprintf("kappa not determined by the measurements, %.3g with a standard error of %.2g: 0", kappa.Value, kappa.Error))
	}
	if names := undetermined(f.Coefficients()); names != "" {
		p.How = append(p.How, "not determined by the measurements one by one, with standard errors above the value: "+names)
	}
	if f.Bursty > 0 {
		p.How = append(p.How, fmt.Sprintf("of %d cells, whose tokens came in bursts, only the normalised latency is fitted", f.Bursty))
	}
	p.How = append(p.How, "kv_bytes_per_token is given; weight_bytes is unknown; transfer_base and link_rate are assumptions")
	for _, x := range []*float64{&p.D0, &p.D1, &p.D2, &p.D3, &p.D4, &p.Kappa, &p.QoE.D0, &p.QoE.D1, &p.QoE.D2, &p.QoE.D3, &p.QoE.D4,
		&p.FitError.P50, &p.FitError.P90, &p.QoE.FitError.P50, &p.QoE.FitError.P90} {
		// Through decimal, so that the file shows five digits and not their binary neighbours.
		*x, _ = strconv.ParseFloat(strconv.FormatFloat(*x, 'g', 5, 64), 64)
	}
	if err := p.Validate(); err != nil {
		return cost.Profile{}, err
	}
	return p, nil
}

// String is the errors in one clause.
func (p Prediction) String() string {
	return fmt.Sprintf("error on requests that were not fitted: mean %.1f %%, p50 %.1f %%, p90 %.1f %%; always the mean: %.0f %%",
		p.Model.Mean*100, p.Model.P50*100, p.Model.P90*100, p.Static.Mean*100)
}

func fitError(e Errors) cost.FitError { return cost.FitError{P50: e.P50, P90: e.P90, Points: e.Count} }
