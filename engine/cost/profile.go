// Package cost prices an engine's iterations: profiles of real GPUs, and how they are read, scaled and fitted
// from public measurement tables.
//
// It is not a simulator and keeps no state. Invariant: a Profile from Read, Builtin or Fit is valid, and every
// time in it is in seconds.
package cost

import (
	"errors"
	"fmt"
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// Profile is the cost model of one engine: one model on one kind of device. It holds two
// models that must not be confused: the coefficients D0…D4 and Kappa price an iteration, and
// QoE predicts what requests experience.
// It is inert data and is passed by value.
//
// Invariants, checked by Validate:
//  1. Name is not empty and Unit is "seconds",
//  2. the coefficients form a valid policies.Cost,
//  3. KVTokens, KVBytesPerToken and MaxBatch are positive,
//  4. Ranks ≥ 1, and the remaining quantities are finite and not negative,
//  5. WeightSeconds ≤ D0,
//  6. QoE is zero, or its coefficients form a valid policies.QoE.
type Profile struct {
	Name   string `json:"name"`   // for instance "h200-llama-3.1-8b"
	Source string `json:"source"` // where the measurements come from, by public name
	Unit   string `json:"unit"`   // always "seconds"; a file in another unit is refused
	// How explains which coefficients were fitted, which derived from data sheets and which
	// assumed.
	How []string `json:"how,omitempty"`
	// Command makes the profile again, from its measurements.
	Command string `json:"command,omitempty"`

	D0    float64 `json:"d0"`    // seconds per iteration
	D1    float64 `json:"d1"`    // seconds per decoding sequence per iteration
	D2    float64 `json:"d2"`    // seconds per uncached prompt token
	D3    float64 `json:"d3"`    // seconds per squared prompt token (uncached part)
	D4    float64 `json:"d4"`    // seconds per KV token attended to per iteration
	Kappa float64 `json:"kappa"` // weight of Lmax − Lmean, a ratio; 0 where nothing was measured

	KVBytesPerToken policies.Bytes  `json:"kv_bytes_per_token"` // bytes of KV cache per token, over all ranks
	KVTokens        policies.Tokens `json:"kv_tokens"`          // tokens the KV cache holds
	MaxBatch        int             `json:"max_batch"`          // sequences that run at once

	Ranks       int            `json:"ranks"`        // tensor-parallel ranks of the replica; 0 in a file means 1
	WeightBytes policies.Bytes `json:"weight_bytes"` // bytes of weights, over all ranks
	// WeightSeconds is the part of D0 that reads the weights: tensor-parallel
	// ranks share it, the rest of D0 they do not.
	WeightSeconds float64 `json:"weight_seconds"`
	// ReduceSeconds is added to every iteration of a replica with more than
	// one rank: the all-reduces of its layers.
	ReduceSeconds float64 `json:"reduce_seconds"`

	TransferBase float64 `json:"transfer_base"` // seconds of stall per migration of a running request
	// LinkRate is bytes per second between two replicas; 0 means unknown, and
	// a migration then costs TransferBase alone.
	LinkRate float64 `json:"link_rate"`

	FitError FitError `json:"fit_error"`

	// QoE is what requests experience, as regressed; omitted where nothing was regressed. Use
	// QoEModel.
	QoE QoE `json:"qoe,omitzero"`
}

// FitError is the relative error of the decode part of a fitted profile: against the points that it was fitted
// to if these come from a table, and against requests that were held out if How says so.
type FitError struct {
	P50    float64 `json:"p50"` // median, 0.06 is 6 %
	P90    float64 `json:"p90"`
	Points int     `json:"points"` // that the errors are of; 0: nothing was fitted
}

// Cost returns the coefficients as a policies.Cost.
func (p Profile) Cost() policies.Cost {
	return policies.Cost{D0: p.D0, D1: p.D1, D2: p.D2, D3: p.D3, D4: p.D4, Kappa: p.Kappa}
}

// Capacity returns what one replica can hold. It contains no transfer rate, which depends on limits and links
// that a profile does not contain.
func (p Profile) Capacity() policies.Capacity {
	return policies.Capacity{KV: p.KVTokens, Batch: p.MaxBatch}
}

// Transfer returns the cost of migrating a running request over LinkRate.
func (p Profile) Transfer() policies.Transfer {
	t := policies.Transfer{Base: p.TransferBase}
	if p.LinkRate > 0 {
		t.PerToken = float64(p.KVBytesPerToken) / p.LinkRate
	}
	return t
}

// Validate returns the first violated invariant, or nil. Errors name the JSON field.
func (p Profile) Validate() error {
	at := fmt.Sprintf("profile %q", p.Name)
	switch {
	case p.Name == "":
		return errors.New(`profile: field "name": must not be empty`)
	case p.Unit != "seconds":
		return fmt.Errorf(`%s: field "unit": is %q, must be "seconds" (convert the coefficients)`, at, p.Unit)
	case !(p.D0 > 0) || math.IsInf(p.D0, 0):
		return fmt.Errorf(`%s: field "d0": must be a positive number of seconds, not %v`, at, p.D0)
	case p.KVTokens <= 0:
		return fmt.Errorf(`%s: field "kv_tokens": must be positive, not %d`, at, int64(p.KVTokens))
	case p.KVBytesPerToken <= 0:
		return fmt.Errorf(`%s: field "kv_bytes_per_token": must be positive, not %d`, at, int64(p.KVBytesPerToken))
	case p.MaxBatch <= 0:
		return fmt.Errorf(`%s: field "max_batch": must be positive, not %d`, at, p.MaxBatch)
	case p.Ranks < 1:
		return fmt.Errorf(`%s: field "ranks": must be at least 1, not %d`, at, p.Ranks)
	case p.WeightBytes < 0:
		return fmt.Errorf(`%s: field "weight_bytes": must not be negative`, at)
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"d1", p.D1}, {"d2", p.D2}, {"d3", p.D3}, {"d4", p.D4}, {"kappa", p.Kappa},
		{"weight_seconds", p.WeightSeconds}, {"reduce_seconds", p.ReduceSeconds},
		{"transfer_base", p.TransferBase}, {"link_rate", p.LinkRate},
		{"fit_error.p50", p.FitError.P50}, {"fit_error.p90", p.FitError.P90},
		{"qoe.fit_error.p50", p.QoE.FitError.P50}, {"qoe.fit_error.p90", p.QoE.FitError.P90},
	} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf(`%s: field %q: must be finite and not negative, not %v`, at, f.name, f.value)
		}
	}
	if p.WeightSeconds > p.D0 {
		return fmt.Errorf(`%s: field "weight_seconds": is %v, more than d0 (%v), of which it is a part`, at, p.WeightSeconds, p.D0)
	}
	if p.QoE != (QoE{}) {
		if err := p.QoE.Coefficients().Validate(); err != nil {
			return fmt.Errorf(`%s: field "qoe": %w`, at, err)
		}
	}
	return p.Cost().Validate()
}

// Scale returns the profile of a replica that is speed times as fast: every
// time is divided by speed, and link rates grow with it. speed must be positive.
func (p Profile) Scale(speed float64) Profile {
	c := p.Cost().Scale(1 / speed)
	p.D0, p.D1, p.D2, p.D3, p.D4 = c.D0, c.D1, c.D2, c.D3, c.D4
	q := p.QoE.Coefficients().Scale(1 / speed)
	p.QoE.D0, p.QoE.D1, p.QoE.D2, p.QoE.D3, p.QoE.D4 = q.D0, q.D1, q.D2, q.D3, q.D4
	p.WeightSeconds /= speed
	p.ReduceSeconds /= speed
	p.TransferBase /= speed
	p.LinkRate *= speed
	return p
}

// TensorParallel returns the profile of a replica whose model is split over n
// times as many ranks: weights, attention and KV cache are divided evenly, the
// fixed rest of an iteration is not, and every iteration pays ReduceSeconds.
// n below 2 returns the profile unchanged. It is an extrapolation: no table of
// ours measures it, and a regressed QoE model is dropped.
func (p Profile) TensorParallel(n int) Profile {
	if n < 2 {
		return p
	}
	f := float64(n)
	fixed := p.D0 - p.WeightSeconds
	if p.Ranks == 1 {
		fixed += p.ReduceSeconds
	}
	p.WeightSeconds /= f
	p.D0 = fixed + p.WeightSeconds
	p.D1, p.D2, p.D3, p.D4 = p.D1/f, p.D2/f, p.D3/f, p.D4/f
	// Every added rank brings the memory that held one full copy of the
	// weights and the cache, and holds only its share of the weights.
	spare := policies.Tokens(float64(p.WeightBytes) * (f - 1) / float64(p.KVBytesPerToken))
	p.KVTokens = p.KVTokens*policies.Tokens(n) + spare
	p.Ranks *= n
	p.QoE = QoE{}
	return p
}

// Iteration is the work of one engine iteration.
type Iteration struct {
	Decodes int             // n: sequences that get a token
	Held    policies.Tokens // ΣL over them: KV tokens attended to
	Longest policies.Tokens // Lmax among them
	Prefill policies.Tokens // uncached prompt tokens processed
	// Prefill2 is Σ (end² − start²) over the prompt chunks [start, end).
	Prefill2 float64
}

// Alone returns the latencies in seconds of a request that has the engine for itself: to the first token,
// and between tokens. An iteration computes up to chunk tokens of its prompt.
func (p Profile) Alone(input, output, chunk policies.Tokens) (ttft, tpot float64) {
	i := float64(input)
	ttft = p.D0*float64((input+chunk-1)/chunk) + p.D2*i + p.D3*i*i
	return ttft, p.D0 + p.D1 + p.D4*(i+float64(output)/2)
}

// Seconds is the time of one iteration:
//
//	D0 + D1·n + D2·ΣI + D3·Σ(end² − start²) + D4·(ΣL + Kappa·(Lmax − Lmean))
//
// An empty iteration takes no time.
func (p Profile) Seconds(it Iteration) float64 {
	if it.Decodes == 0 && it.Prefill == 0 {
		return 0
	}
	t := p.D0 + float64(p.D1*float64(it.Decodes)) + float64(p.D2*float64(it.Prefill)) + float64(p.D3*it.Prefill2)
	if it.Decodes > 0 {
		held := float64(it.Held)
		skew := float64(it.Longest) - held/float64(it.Decodes)
		t += float64(p.D4 * (held + float64(p.Kappa*skew)))
	}
	return t
}
