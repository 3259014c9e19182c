package costfit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/engine/cost"
)

// minPrefillChunk is the smallest prompt chunk that prefill coefficients are
// fitted to: below it time is that of reading the weights, which D0 has.
const minPrefillChunk = 256

// fitLayers fits every coefficient from LLMServingSim's one-layer tables.
func (c FitConfig) fitLayers(p *cost.Profile) error {
	small, large, err := c.readDense(p.MaxBatch)
	if err != nil {
		return err
	}
	decode, prefill, err := c.readAttention()
	if err != nil {
		return err
	}
	head, err := c.readPerSequence(p.MaxBatch)
	if err != nil {
		return err
	}
	fit := func(table string, rows []row) []float64 {
		a, failed := leastSquares(rows)
		if failed != nil {
			err = cmp.Or(err, fmt.Errorf("%s: %w", table, failed))
			return make([]float64, 3)
		}
		return a
	}
	dense := fit("dense table", small)
	// Prompts are fitted on what they add to an iteration that reads the
	// weights anyway.
	var added []row
	for _, r := range large {
		if r.t > dense[0] {
			added = append(added, row{x: r.x[1:], t: r.t - dense[0]})
		}
	}
	prompt := fit("dense table, prompts", added)
	attention, chunk := fit("attention table, decode", decode), fit("attention table, prefill", prefill)
	last := fit("per-sequence table", head)
	if err != nil {
		return err
	}
	layers := float64(c.Model.Layers)
	p.FitError = errorOf(decode, attention)
	p.D0 = dense[0] + last[0] + attention[0]*layers + c.Device.Overhead
	p.D1 = dense[1] + last[1] + attention[1]*layers
	p.D2 = prompt[0] + chunk[1]*layers
	p.D3 = chunk[2] * layers
	p.D4 = attention[2] * layers
	p.WeightSeconds = dense[0]
	de := errorOf(small, dense)
	p.How = append(p.How,
		fmt.Sprintf("d0, d1 fitted: dense layers × %d up to %d tokens (error p50 %.1f %%, p90 %.1f %%), head and sampler, decode attention", c.Model.Layers, p.MaxBatch, de.P50*100, de.P90*100),
		fmt.Sprintf("d2, d3 fitted: dense layers and prefill attention, chunks from %d tokens", minPrefillChunk),
		"d4 fitted: decode attention, uniform lengths up to 16384; fit_error is this fit's")
	return nil
}

// readDense sums the layers of one forward pass by token count, in seconds:
// rows up to maxBatch tokens, and rows of prompt size.
func (c FitConfig) readDense(maxBatch int) (small, large []row, err error) {
	// A transformer layer has two norms; embedding and final norm run once.
	layers := float64(c.Model.Layers)
	times := map[string]float64{"layernorm": 2 * layers, "embedding": 1, "final_layernorm": 1}
	sum, kinds, most := make(map[int]float64), make(map[int]int), 0
	err = cost.ReadTable("dense", c.Dense, func(t *cost.Table) {
		n, known := times[t.Text("layer")]
		if !known {
			n = layers
		}
		tokens := int(t.Number("tokens"))
		sum[tokens] += n * t.Number("time_us") * 1e-6
		kinds[tokens]++
		most = max(most, kinds[tokens])
	}, "layer", "tokens", "time_us")
	if err != nil {
		return nil, nil, err
	}
	for _, tokens := range slices.Sorted(maps.Keys(sum)) {
		if kinds[tokens] != most {
			return nil, nil, fmt.Errorf("dense table: %d tokens have %d layers, others %d; a pass cannot be summed", tokens, kinds[tokens], most)
		}
		r := row{x: []float64{1, float64(tokens)}, t: sum[tokens]}
		if tokens <= maxBatch {
			small = append(small, r)
		}
		if tokens >= minPrefillChunk {
			large = append(large, r)
		}
	}
	return small, large, nil
}

// readPerSequence sums head and sampler by sequence count.
func (c FitConfig) readPerSequence(maxBatch int) ([]row, error) {
	sum := make(map[int]float64)
	err := cost.ReadTable("per-sequence", c.PerSequence, func(t *cost.Table) {
		n, seconds := int(t.Number("sequences")), t.Number("time_us")*1e-6
		if n <= maxBatch {
			sum[n] += seconds
		}
	}, "layer", "sequences", "time_us")
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, n := range slices.Sorted(maps.Keys(sum)) {
		rows = append(rows, row{x: []float64{1, float64(n)}, t: sum[n]})
	}
	return rows, nil
}

// readAttention returns the pure decode rows (1, n, ΣKV) and the pure prefill
// rows (1, chunk, end² − start²) of one layer.
func (c FitConfig) readAttention() (decode, prefill []row, err error) {
	err = cost.ReadTable("attention", c.Attention, func(t *cost.Table) {
		chunk, cached, n, kv, seconds := t.Number("prefill_chunk"), t.Number("kv_prefill"), t.Number("n_decode"), t.Number("kv_decode"), t.Number("time_us")*1e-6
		switch {
		case !(seconds > 0):
			t.Fail(": time_us must be positive")
		case chunk == 0 && n > 0 && kv >= minFitKV:
			decode = append(decode, row{x: []float64{1, n, n * kv}, t: seconds})
		case chunk >= minPrefillChunk && n == 0:
			end := cached + chunk
			prefill = append(prefill, row{x: []float64{1, chunk, end*end - cached*cached}, t: seconds})
		}
	}, "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
	return decode, prefill, err
}

// fitSkew fits Kappa: what a decode batch of unequal lengths takes beyond one
// of equal lengths and the same sum, over D4·(Lmax − Lmean).
func (c FitConfig) fitSkew(p *cost.Profile) error {
	perLayer := p.D4 / float64(c.Model.Layers)
	var num, den float64
	points := 0
	err := cost.ReadTable("skew", c.Skew, func(t *cost.Table) {
		if t.Text("regime") != "pure" {
			return
		}
		mean := t.Number("t_mean_us")
		if !(mean > 0) {
			t.Fail(": t_mean_us must be positive")
		}
		// One relative least-squares column, in closed form: the penalty may be
		// negative in single rows, which leastSquares does not take.
		x := perLayer * (t.Number("kv_big") - t.Number("kv_mean")) / (mean * 1e-6)
		y := (t.Number("t_skew_us") - mean) / mean
		num += float64(x * y)
		den += float64(x * x)
		points++
	}, "regime", "kv_big", "kv_mean", "t_mean_us", "t_skew_us")
	if err != nil {
		return err
	}
	if den == 0 {
		return errors.New("skew table: no row of regime pure with unequal lengths")
	}
	p.Kappa = max(0, num/den)
	p.How = append(p.How, fmt.Sprintf("kappa fitted: %d pure decode batches of unequal lengths (KV ≤ 16384, mostly 4:1)", points))
	return nil
}
