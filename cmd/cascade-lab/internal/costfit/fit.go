// Package costfit fits the built-in cost profiles to public measurement tables. Its tests say which tables, and fit again
// with -tables FOLDER.
package costfit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies"
)

// Model is the shape of a transformer, as far as its cost depends on it.
type Model struct {
	Layers     int
	Heads      int     // query heads
	KVHeads    int     // key/value heads
	HeadDim    int     // elements per head
	Parameters float64 // weights in all
}

// elementBytes is the size of a weight and of a KV element: bf16.
const elementBytes = 2

// Llama8B is the shape of Llama-3.1-8B, the model of the built-in profiles.
func Llama8B() Model {
	return Model{Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, Parameters: 8.03e9}
}

// kvBytesPerToken is keys and values of all layers.
func (m Model) kvBytesPerToken() policies.Bytes {
	return policies.Bytes(2 * m.Layers * m.KVHeads * m.HeadDim * elementBytes)
}

// Device contains data-sheet values for what no table measured.
type Device struct {
	Memory float64 // bytes of device memory
	Flops  float64 // dense multiply-add operations per second at the model's precision, counted as 2
	// Overhead is seconds per iteration outside the GPU's kernels (launching,
	// sampling, scheduling), which no table has. OverheadFrom says where the
	// figure comes from; "" shows it as an assumption.
	Overhead     float64
	OverheadFrom string
}

// Shares of the data sheet's figures that engines reach or leave free: assumptions of every profile with a
// derived prefill.
const (
	denseShare     = 0.60 // of Flops in the dense layers of a prefill
	attentionShare = 0.40 // of Flops in prefill attention
	memoryShare    = 0.90 // of Memory that an engine takes, vLLM's default
	activations    = 2e9  // bytes of Memory kept for activations
)

// FitConfig is the input of Fit. Name, Source, Model, Device.Memory and one set of tables are required:
// Generation, or Attention with Dense and PerSequence.
type FitConfig struct {
	Name, Source string
	Command      string // Profile.Command
	Model        Model
	Device       Device

	// Generation is ai-dynamo/aiconfigurator's generation_attention_perf.csv:
	// milliseconds per layer by batch_size and isl+step, uniform lengths.
	Generation io.Reader

	// Attention, Dense and PerSequence are LLMServingSim's attention.csv,
	// dense.csv and per_sequence.csv: microseconds for one layer.
	Attention, Dense, PerSequence io.Reader
	// Skew is LLMServingSim's skew.csv, mixed-length decode batches; nil
	// leaves Kappa 0.
	Skew io.Reader
}

func (c FitConfig) validate() error {
	m := c.Model
	switch {
	case c.Name == "":
		return errors.New("Name must not be empty")
	case m.Layers <= 0 || m.Heads <= 0 || m.KVHeads <= 0 || m.HeadDim <= 0 || !(m.Parameters > 0):
		return errors.New("Model: Layers, Heads, KVHeads, HeadDim and Parameters must be positive")
	case !(c.Device.Memory > 0):
		return errors.New("Device.Memory must be positive")
	case c.Generation == nil && (c.Attention == nil || c.Dense == nil || c.PerSequence == nil):
		return errors.New("tables: give Generation, or Attention, Dense and PerSequence")
	case c.Generation != nil && c.Attention != nil:
		return errors.New("tables: give Generation or Attention, not both")
	case c.Generation != nil && !(c.Device.Flops > 0):
		return errors.New("Device.Flops must be positive: the Generation table has no prefill, which is derived from it")
	}
	return nil
}

// Fit makes a profile from public measurement tables by non-negative relative
// least squares. The profile's How says what is fitted, derived and assumed.
func Fit(c FitConfig) (cost.Profile, error) {
	if err := c.validate(); err != nil {
		return cost.Profile{}, fmt.Errorf("fit profile: %w", err)
	}
	p := cost.Profile{
		Name: c.Name, Source: c.Source, Command: c.Command, Unit: "seconds", Ranks: 1,
		KVBytesPerToken: c.Model.kvBytesPerToken(),
		WeightBytes:     policies.Bytes(c.Model.Parameters) * elementBytes,
		MaxBatch:        256,
		ReduceSeconds:   2 * 10e-6 * float64(c.Model.Layers), // 10 µs twice a layer
		TransferBase:    10e-3,
		LinkRate:        25e9, // bytes/s: 200 Gbit/s
	}
	free := memoryShare*c.Device.Memory - activations - float64(p.WeightBytes)
	p.KVTokens = policies.Tokens(free / float64(p.KVBytesPerToken))
	var err error
	if c.Generation != nil {
		err = c.fitGeneration(&p)
	} else {
		err = c.fitLayers(&p)
	}
	if err == nil && c.Skew != nil {
		err = c.fitSkew(&p)
	}
	if err != nil {
		return cost.Profile{}, fmt.Errorf("fit profile %q: %w", c.Name, err)
	}
	p.How = append(p.How,
		fmt.Sprintf("kv_tokens derived: (%.0f %% of %.0f GB − weights − %.0f GB) / kv_bytes_per_token", memoryShare*100, c.Device.Memory/1e9, activations/1e9),
		"reduce_seconds, transfer_base and link_rate are assumptions",
		fmt.Sprintf("d0 has %.0f µs outside the kernels: %s", c.Device.Overhead*1e6, cmp.Or(c.Device.OverheadFrom, "an assumption")),
		fmt.Sprintf("qoe not regressed: a regression on the log of a simulated engine predicts ShareGPT's requests less well than the iteration model with prefills over %d output tokens (CASCADE_TEST_ALL=1 go test ./engine/profiling -run ClosedFormIsCloser)", cost.MeanOutput))
	if err := p.Validate(); err != nil {
		return cost.Profile{}, fmt.Errorf("fit profile: %w", err)
	}
	return round(p), nil
}

// round keeps five digits: the tables have no more, and files stay readable.
func round(p cost.Profile) cost.Profile {
	for _, x := range []*float64{&p.D0, &p.D1, &p.D2, &p.D3, &p.D4, &p.Kappa, &p.WeightSeconds, &p.ReduceSeconds, &p.FitError.P50, &p.FitError.P90} {
		// Through decimal, so that the file shows five digits and not their
		// binary neighbours.
		*x, _ = strconv.ParseFloat(strconv.FormatFloat(*x, 'g', 5, 64), 64)
	}
	return p
}
