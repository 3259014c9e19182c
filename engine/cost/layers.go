package cost

import (
	"errors"
	"fmt"
	"slices"
)

// minPrefillChunk is the smallest prompt chunk that prefill coefficients are
// fitted to: below it time is that of reading the weights, which D0 has.
const minPrefillChunk = 256

// fitLayers fits every coefficient from LLMServingSim's one-layer tables.
func (c FitConfig) fitLayers(p *Profile) error {
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
	dense, err := leastSquares(small)
	if err != nil {
		return fmt.Errorf("dense table: %w", err)
	}
	// Prompts are fitted on what they add to an iteration that reads the
	// weights anyway.
	var added []row
	for _, r := range large {
		if r.t > dense[0] {
			added = append(added, row{x: r.x[1:], t: r.t - dense[0]})
		}
	}
	prompt, err := leastSquares(added)
	if err != nil {
		return fmt.Errorf("dense table, prompts: %w", err)
	}
	attention, err := leastSquares(decode)
	if err != nil {
		return fmt.Errorf("attention table, decode: %w", err)
	}
	chunk, err := leastSquares(prefill)
	if err != nil {
		return fmt.Errorf("attention table, prefill: %w", err)
	}
	last, err := leastSquares(head)
	if err != nil {
		return fmt.Errorf("per-sequence table: %w", err)
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
	t, err := openTable("dense", c.Dense, "layer", "tokens", "time_us")
	if err != nil {
		return nil, nil, err
	}
	// A transformer layer has two norms; embedding and final norm run once.
	layers := float64(c.Model.Layers)
	times := map[string]float64{"layernorm": 2 * layers, "embedding": 1, "final_layernorm": 1}
	sum, kinds, most := make(map[int]float64), make(map[int]int), 0
	for {
		more, err := t.next()
		if err != nil {
			return nil, nil, err
		}
		if !more {
			break
		}
		v, err := t.numbers("tokens", "time_us")
		if err != nil {
			return nil, nil, err
		}
		n, known := times[t.text("layer")]
		if !known {
			n = layers
		}
		sum[int(v[0])] += n * v[1] * 1e-6
		kinds[int(v[0])]++
		most = max(most, kinds[int(v[0])])
	}
	for _, tokens := range sorted(sum) {
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
	t, err := openTable("per-sequence", c.PerSequence, "layer", "sequences", "time_us")
	if err != nil {
		return nil, err
	}
	sum := make(map[int]float64)
	for {
		more, err := t.next()
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		v, err := t.numbers("sequences", "time_us")
		if err != nil {
			return nil, err
		}
		if int(v[0]) <= maxBatch {
			sum[int(v[0])] += v[1] * 1e-6
		}
	}
	var rows []row
	for _, n := range sorted(sum) {
		rows = append(rows, row{x: []float64{1, float64(n)}, t: sum[n]})
	}
	return rows, nil
}

// readAttention returns the pure decode rows (1, n, ΣKV) and the pure prefill
// rows (1, chunk, end² − start²) of one layer.
func (c FitConfig) readAttention() (decode, prefill []row, err error) {
	t, err := openTable("attention", c.Attention, "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
	if err != nil {
		return nil, nil, err
	}
	for {
		more, err := t.next()
		if err != nil {
			return nil, nil, err
		}
		if !more {
			break
		}
		v, err := t.numbers("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
		if err != nil {
			return nil, nil, err
		}
		chunk, cached, n, kv, seconds := v[0], v[1], v[2], v[3], v[4]*1e-6
		switch {
		case !(seconds > 0):
			return nil, nil, fmt.Errorf("attention table: line %d: time_us must be positive", t.line)
		case chunk == 0 && n > 0 && kv >= minFitKV:
			decode = append(decode, row{x: []float64{1, n, n * kv}, t: seconds})
		case chunk >= minPrefillChunk && n == 0:
			end := cached + chunk
			prefill = append(prefill, row{x: []float64{1, chunk, end*end - cached*cached}, t: seconds})
		}
	}
	return decode, prefill, nil
}

// fitSkew fits Kappa: what a decode batch of unequal lengths takes beyond one
// of equal lengths and the same sum, over D4·(Lmax − Lmean).
func (c FitConfig) fitSkew(p *Profile) error {
	t, err := openTable("skew", c.Skew, "regime", "kv_big", "kv_mean", "t_mean_us", "t_skew_us")
	if err != nil {
		return err
	}
	perLayer := p.D4 / float64(c.Model.Layers)
	var num, den float64
	points := 0
	for {
		more, err := t.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if t.text("regime") != "pure" {
			continue
		}
		v, err := t.numbers("kv_big", "kv_mean", "t_mean_us", "t_skew_us")
		if err != nil {
			return err
		}
		if !(v[2] > 0) {
			return fmt.Errorf("skew table: line %d: t_mean_us must be positive", t.line)
		}
		// One relative least-squares column, in closed form: the penalty may be
		// negative in single rows, which leastSquares does not take.
		x := perLayer * (v[0] - v[1]) / (v[2] * 1e-6)
		y := (v[3] - v[2]) / v[2]
		num += float64(x * y)
		den += float64(x * x)
		points++
	}
	if den == 0 {
		return errors.New("skew table: no row of regime pure with unequal lengths")
	}
	p.Kappa = max(0, num/den)
	p.How = append(p.How, fmt.Sprintf("kappa fitted: %d pure decode batches of unequal lengths (KV ≤ 16384, mostly 4:1)", points))
	return nil
}

func sorted(m map[int]float64) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
