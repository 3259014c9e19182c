package costfit

import (
	"fmt"

	"github.com/cascadeinfer/cascade/engine/cost"
)

// Points outside these bounds are launch overhead or shapes no engine runs.
const (
	maxFitBatch = 512
	minFitKV    = 64
)

// fitGeneration fits decode attention from aiconfigurator's table and derives
// the dense part from it and from the data sheet.
func (c FitConfig) fitGeneration(p *cost.Profile) error {
	var rows []row
	m := c.Model
	err := cost.ReadTable("generation attention", c.Generation, func(t *cost.Table) {
		batch, kv, ms := t.Number("batch_size"), t.Number("isl")+t.Number("step"), t.Number("latency")
		shape := [...]float64{t.Number("num_heads"), t.Number("num_key_value_heads"), t.Number("head_dim")}
		window := t.Text("window_size")
		switch {
		case int(shape[0]) != m.Heads || int(shape[1]) != m.KVHeads || int(shape[2]) != m.HeadDim:
		case t.Text("attn_dtype") != "bfloat16" || t.Text("kv_cache_dtype") != "bfloat16":
		case window != "" && window != "0":
		case batch > maxFitBatch || kv < minFitKV || !(ms > 0):
		default:
			rows = append(rows, row{x: []float64{1, batch, batch * kv}, t: ms * 1e-3})
		}
	}, "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype", "kv_cache_dtype", "latency")
	if err != nil {
		return err
	}
	a, err := leastSquares(rows)
	if err != nil {
		return fmt.Errorf("generation attention table, %d rows of shape %d/%d heads × %d bf16: %w", len(rows), m.Heads, m.KVHeads, m.HeadDim, err)
	}
	if a[2] == 0 {
		return fmt.Errorf("generation attention table: time does not grow with KV length, so no bandwidth can be derived")
	}
	layers := float64(m.Layers)
	p.FitError = errorOf(rows, a)
	p.D1, p.D4 = a[1]*layers, a[2]*layers
	// Reading weights and reading KV are both streams from device memory, so
	// the bandwidth that attention reached prices the weights too.
	bandwidth := float64(p.KVBytesPerToken) / layers / a[2]
	p.WeightSeconds = float64(p.WeightBytes) / bandwidth
	p.D0 = a[0]*layers + p.WeightSeconds + c.Device.Overhead
	p.D2 = 2 * m.Parameters / (c.Device.Flops * denseShare)
	// Causal attention of a prompt of I tokens: QKᵀ and PV, each 2·I²/2
	// operations per hidden element and layer.
	p.D3 = 2 * float64(m.Heads*m.HeadDim) * layers / (c.Device.Flops * attentionShare)
	p.How = append(p.How,
		fmt.Sprintf("d1, d4 and the attention part of d0 fitted: decode attention per layer × %d layers, batch ≤ %d, KV ≥ %d, uniform lengths", m.Layers, maxFitBatch, minFitKV),
		fmt.Sprintf("d0 derived: attention %.0f µs + weights %.2f GB at the %.2f TB/s that attention reached", a[0]*layers*1e6, float64(p.WeightBytes)/1e9, bandwidth/1e12),
		fmt.Sprintf("d2, d3 derived: operations of the model at %.0f %% (dense) and %.0f %% (attention) of %.0f TFLOP/s", denseShare*100, attentionShare*100, c.Device.Flops/1e12),
		"d1 has no dense part: dense layers are taken as memory-bound, too fast above about 150 sequences",
		"kappa not measured for this kernel: 0")
	return nil
}
