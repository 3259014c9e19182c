package length

import "github.com/cascadeinfer/cascade/policies"

const (
	// memory is the log2 of how many of the latest requests a Learner weights, about: a
	// power of two, so that forgetting is a shift.
	memory = 9 // 512
	// heaviest bounds the weight of one request in tokens, so that one huge unusual prompt
	// does not dominate.
	heaviest = 1 << 14
	// prior is the weight in tokens of a Learner's initial ratio.
	prior = 1024
	// stretch bounds how far one request's ratio may differ from the present one; beyond
	// that it counts as that bound. A lasting change still gets through, geometrically.
	stretch = 2
	// fixed is the scale of the fixed-point sums: shifts must not lose small ones.
	fixed = 1 << 12
	// worst bounds one request's relative error, in millionths.
	worst = 10_000_000
)

// Learner learns a model's bytes per token from requests whose exact prompt length became
// known, with exponential forgetting. It uses only integer arithmetic: the same
// observations give the same ratio everywhere.
//
// The zero value starts at DefaultRatio. It is not safe for concurrent use.
type Learner struct {
	bytes  int64 // Σ weighted bytes, in 1/fixed
	tokens int64 // Σ weighted tokens, in 1/fixed
	errors int64 // Σ weighted relative errors, in millionths/fixed
	weight int64 // Σ weights of errors, in 1/fixed
	seen   int64
}

// NewLearner returns a Learner that starts at a ratio.
func NewLearner(r Ratio) *Learner {
	return &Learner{bytes: prior * fixed * int64(r.Clamp()) / 1000, tokens: prior * fixed}
}

// Observe records one request: the text bytes that the estimate was made from (Count's
// Text) and the exact number of tokens. The error is that of the estimate which the
// Learner would have made just before. Values that are not positive are ignored.
func (l *Learner) Observe(text int64, exact policies.Tokens) {
	if text <= 0 || exact <= 0 {
		return
	}
	if l.tokens == 0 {
		*l = *NewLearner(DefaultRatio)
	}
	l.seen++
	ratio := l.Ratio()
	l.errors += errorOf(Estimator{ratio}.FromContentLength(text), exact)*fixed - l.errors>>memory
	l.weight += fixed - l.weight>>memory

	// Scale the pair down to its allowed weight, then limit its ratio to within the stretch
	// of the present one.
	tokens := int64(exact)
	if tokens > heaviest {
		text, tokens = int64(mulDiv(uint64(text), heaviest, uint64(tokens), 0)), heaviest
	}
	low := tokens * int64(ratio) / (1000 * stretch)
	high := tokens * int64(ratio) * stretch / 1000
	text = min(max(text, low), high)
	l.bytes += text*fixed - l.bytes>>memory
	l.tokens += tokens*fixed - l.tokens>>memory
}

// Ratio returns the present bytes per token, within its bounds.
func (l *Learner) Ratio() Ratio {
	if l.tokens == 0 {
		return DefaultRatio
	}
	return Ratio(mulDiv(uint64(l.bytes), 1000, uint64(l.tokens), uint64(l.tokens)/2)).Clamp()
}

// Estimator returns the estimator with the present ratio.
func (l *Learner) Estimator() Estimator { return Estimator{BytesPerToken: l.Ratio()} }

// RelativeError returns the mean absolute relative error |estimate − exact| / exact of
// the latest requests, 0 before the first. One request counts for at most 10.
func (l *Learner) RelativeError() float64 {
	if l.weight == 0 {
		return 0
	}
	return float64(l.errors) / float64(l.weight) / 1e6
}

// Observations returns how many requests the Learner has recorded.
func (l *Learner) Observations() int64 { return l.seen }

// errorOf returns |estimate − exact| / exact in millionths, at most worst.
func errorOf(estimate, exact policies.Tokens) int64 {
	d := estimate - exact
	if d < 0 {
		d = -d
	}
	return int64(min(mulDiv(uint64(d), 1_000_000, uint64(exact), 0), worst))
}
