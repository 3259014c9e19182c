package length

import (
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
)

// Ratio is bytes of text per token, in thousandths: 4000 means four bytes per token.
// Integers make the estimate equal on every machine and in Wasm.
type Ratio int64

// The bounds of a Ratio, and the initial one. English prose under current vocabularies
// has 4 to 5 bytes per token; half a byte and sixteen bytes are outside the range of
// any text that is not an attack.
const (
	MinRatio     Ratio = 500
	DefaultRatio Ratio = 4000
	MaxRatio     Ratio = 16000
)

// Clamp returns the ratio within its bounds; 0 and less mean DefaultRatio.
func (r Ratio) Clamp() Ratio {
	if r <= 0 {
		return DefaultRatio
	}
	return min(max(r, MinRatio), MaxRatio)
}

// Float returns the ratio in bytes per token.
func (r Ratio) Float() float64 { return float64(r) / 1000 }

// RatioOf returns the Ratio nearest to x bytes per token, within the bounds; NaN, 0 and
// less mean DefaultRatio.
func RatioOf(x float64) Ratio {
	if !(x > 0) {
		return DefaultRatio
	}
	return Ratio(min(max(x*1000, float64(MinRatio)), float64(MaxRatio)) + 0.5)
}

// Estimator converts bytes to tokens. It is a value without state; the zero
// value estimates with DefaultRatio.
type Estimator struct {
	// BytesPerToken is clamped to its bounds; 0 means DefaultRatio.
	BytesPerToken Ratio
}

// FromBody estimates the prompt length of a scanned body: its text at the ratio, rounded
// down, plus its token ids, which are exact. A body that is malformed or has nothing to
// count is estimated by its size.
func (e Estimator) FromBody(c Count) policies.Tokens {
	if c.Malformed || !c.Found {
		return e.FromContentLength(c.Bytes)
	}
	text := e.FromContentLength(c.Text)
	if c.Tokens > policies.Unbounded-text {
		return policies.Unbounded
	}
	return text + c.Tokens
}

// FromContentLength estimates the prompt length of a body by its size in
// bytes: size / ratio, rounded down. A negative size counts as 0.
func (e Estimator) FromContentLength(size int64) policies.Tokens {
	if size <= 0 {
		return 0
	}
	return policies.Tokens(mulDiv(uint64(size), 1000, uint64(e.BytesPerToken.Clamp()), 0))
}

// CutBytes returns the content-length at which a stage boundary lies: for
// every size b below the largest int64,
//
//	FromContentLength(b) < cut  ⇔  b < CutBytes(cut)
//
// so that routes by content-length and routes by the estimate agree. Unbounded
// stays the open end.
func (e Estimator) CutBytes(cut policies.Tokens) int64 {
	if cut <= 0 {
		return 0
	}
	if cut == policies.Unbounded {
		return int64(policies.Unbounded)
	}
	// ⌊1000·b/r⌋ < cut ⇔ 1000·b < cut·r ⇔ b < ⌈cut·r/1000⌉
	return int64(mulDiv(uint64(cut), uint64(e.BytesPerToken.Clamp()), 1000, 999))
}

// mulDiv returns (a·b + c)/d, at most the largest int64.
func mulDiv(a, b, d, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	lo, carry := bits.Add64(lo, c, 0)
	hi += carry
	if hi >= d {
		return uint64(policies.Unbounded)
	}
	q, _ := bits.Div64(hi, lo, d)
	return min(q, uint64(policies.Unbounded))
}
