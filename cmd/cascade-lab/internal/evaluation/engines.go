package evaluation

import (
	"fmt"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/costfit"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies"
)

// The paper's engines, derived from measured profiles of other devices.
const (
	h20Small   = "H20-like, Llama-3.2-3B"
	h20Base    = "H20-like, Llama-3.1-8B"
	h20Medium  = "H20-like, Qwen-2.5-14B"
	h20Large   = "H20-like, Qwen-2.5-32B"
	h20TwoGPU  = "H20-like, Llama-3.1-70B, TP 2"
	h20FourGPU = "H20-like, Llama-3.1-70B, TP 4"
	l40Base    = "L40-like, Llama-3.1-8B"
	h100Small  = "H100, Llama-3.2-3B"
)

// Data-sheet values, and assumptions that the page shows.
const (
	h20Flops       = 148e12 // bf16 dense
	h20Memory      = 141e9
	h100Flops      = 989e12
	h100Memory     = 80e9
	denseShare     = 0.60 // of the operations that dense layers reach, as in package cost
	attentionShare = 0.40
	memoryShare    = 0.90
	activations    = 2e9
	l40Memory      = 48e9
	l40Bandwidth   = 864e9
	proBandwidth   = 1792e9 // of RTX PRO 6000, whose profile is slowed down
	paperBatch     = 1024   // sequences at once, the paper's limit
)

// shapes of the paper's models, by their public configurations.
var (
	llama3B  = costfit.Model{Layers: 28, Heads: 24, KVHeads: 8, HeadDim: 128, Parameters: 3.21e9}
	qwen14B  = costfit.Model{Layers: 48, Heads: 40, KVHeads: 8, HeadDim: 128, Parameters: 14.8e9}
	qwen32B  = costfit.Model{Layers: 64, Heads: 40, KVHeads: 8, HeadDim: 128, Parameters: 32.8e9}
	llama70B = costfit.Model{Layers: 80, Heads: 64, KVHeads: 8, HeadDim: 128, Parameters: 70.6e9}
)

// device is what a derived profile takes from a data sheet.
type device struct{ flops, memory float64 }

// derive returns the profile of another model on a device that reads its memory as fast as the one of p, which is
// of Llama-3.1-8B: what reads weights or KV grows with their bytes, what computes with the operations over the
// device's, and what launches kernels with the layers. A prompt token and a decoded one cost the same operations.
func derive(name string, p cost.Profile, m costfit.Model, d device, ranks int) cost.Profile {
	base := costfit.Llama8B()
	layers := float64(m.Layers) / float64(base.Layers)
	kvBytes := 2 * m.Layers * m.KVHeads * m.HeadDim * 2
	p.Name = name
	launch := (p.D0 - p.WeightSeconds) * layers
	p.WeightSeconds *= m.Parameters / base.Parameters
	p.D0 = launch + p.WeightSeconds
	dense := 2 * m.Parameters / (d.flops * denseShare)
	p.D1 = p.D1*layers + dense
	p.D2 = dense
	p.D3 = 2 * float64(m.Heads*m.HeadDim) * float64(m.Layers) / (d.flops * attentionShare)
	p.D4 *= float64(kvBytes) / float64(p.KVBytesPerToken)
	p.KVBytesPerToken, p.WeightBytes = policies.Bytes(kvBytes), policies.Bytes(2*m.Parameters)
	p.ReduceSeconds *= layers
	p.MaxBatch, p.QoE, p.Kappa = paperBatch, cost.QoE{}, 0
	p = p.TensorParallel(ranks)
	free := float64(ranks)*(memoryShare*d.memory-activations) - float64(p.WeightBytes)
	p.KVTokens = policies.Tokens(free / float64(kvBytes))
	return p
}

// paperEngines returns the profiles of the paper's testbeds.
func paperEngines() (map[string]cost.Profile, error) {
	h200, err := cost.Builtin("h200-llama-3.1-8b")
	if err != nil {
		return nil, err
	}
	h100, err := cost.Builtin("h100-llama-3.1-8b")
	if err != nil {
		return nil, err
	}
	pro, err := cost.Builtin("rtxpro6000-llama-3.1-8b")
	if err != nil {
		return nil, err
	}
	h20 := device{h20Flops, h20Memory}
	l40 := pro.Scale(l40Bandwidth / proBandwidth)
	l40.Name, l40.MaxBatch = l40Base, paperBatch
	l40.KVTokens = policies.Tokens((memoryShare*l40Memory - activations - float64(l40.WeightBytes)) / float64(l40.KVBytesPerToken))
	out := map[string]cost.Profile{
		h20Small:   derive(h20Small, h200, llama3B, h20, 1),
		h20Base:    derive(h20Base, h200, costfit.Llama8B(), h20, 1),
		h20Medium:  derive(h20Medium, h200, qwen14B, h20, 1),
		h20Large:   derive(h20Large, h200, qwen32B, h20, 1),
		h20TwoGPU:  derive(h20TwoGPU, h200, llama70B, h20, 2),
		h20FourGPU: derive(h20FourGPU, h200, llama70B, h20, 4),
		h100Small:  derive(h100Small, h100, llama3B, device{h100Flops, h100Memory}, 1),
		l40Base:    l40,
	}
	for name, p := range out {
		if err := p.Validate(); err != nil {
			return nil, fmt.Errorf("internal error: derived profile %s: %w", name, err)
		}
	}
	return out, nil
}
