package length

import "github.com/cascadeinfer/cascade/policies"

const (
	// memory is log₂ of about how many of the latest requests count: a power of two, so that
	// forgetting is a shift.
	memory = 9 // 512
	// heaviest bounds the weight of one request in tokens, so that a few long prompts do not decide the
	// ratio of all.
	heaviest = 1 << 11
	// prior is the weight in tokens of a Learner's initial ratio.
	prior = 1024
	// ratioStep is the width of a cell of a Learner, and cells their number.
	ratioStep = 125
	cells     = int(MaxRatio-MinRatio)/ratioStep + 1
	// outer is the share of the weight, in eighths, that is ignored at either end of the ratios.
	outer = 3
	// fixed is the scale of the fixed-point sums: shifts must not lose small ones.
	fixed = 1 << 12
	// worst bounds one request's relative error, in millionths.
	worst = 10_000_000
)

// Learner learns a model's bytes per token from requests whose exact prompt length became
// known, with exponential forgetting. It uses only integer arithmetic: the same
// observations give the same ratio everywhere.
//
// The ratio is the mean over the middle quarter of the requests, ordered by ratio and weighted
// by their uncached tokens. A few requests with unusual text do not change it, however long they
// are: about half of the weight would have to be unusual. The ratio follows a lasting change.
//
// The zero value starts at DefaultRatio. It is not safe for concurrent use.
type Learner struct {
	cells [cells]cell // by ratio, from MinRatio up
	ratio Ratio
	// Σ weighted relative errors, in millionths/fixed, and Σ of their weights, in 1/fixed.
	errors, weight int64
	seen           int64
}

// cell holds sums over the requests whose ratios are within one step, in 1/fixed.
type cell struct{ bytes, tokens int64 }

// NewLearner returns a Learner that starts at a ratio.
func NewLearner(r Ratio) *Learner {
	l := &Learner{}
	l.add(r.Clamp(), prior)
	return l
}

// Observe records one request: the text bytes that the estimate was made from (Count's
// Text), the exact number of tokens, and how many of them its engine had cached. Cached tokens
// have no weight, because an earlier request has already counted them. The error is measured
// with the ratio before this request. Values that are not positive are ignored.
func (l *Learner) Observe(text int64, exact, cached policies.Tokens) {
	if text <= 0 || exact <= 0 {
		return
	}
	if l.ratio == 0 {
		*l = *NewLearner(DefaultRatio)
	}
	l.seen++
	l.errors += errorOf(l.Estimator().FromContentLength(text), exact)*fixed - l.errors>>memory
	l.weight += fixed - l.weight>>memory
	uncached := exact - min(max(cached, 0), exact)
	if uncached == 0 {
		return
	}
	for i := range l.cells {
		c := &l.cells[i]
		c.bytes -= c.bytes >> memory
		c.tokens -= c.tokens >> memory
	}
	ratio := Ratio(mulDiv(uint64(text), 1000, uint64(exact), 0))
	l.add(min(max(ratio, MinRatio), MaxRatio), int64(min(uncached, heaviest)))
}

// add adds a request of a ratio within the bounds and a weight in tokens.
func (l *Learner) add(r Ratio, tokens int64) {
	c := &l.cells[(r-MinRatio)/ratioStep]
	c.bytes += tokens * fixed * int64(r) / 1000
	c.tokens += tokens * fixed
	l.ratio = l.middle()
}

// middle returns the mean ratio of the middle of the weight.
func (l *Learner) middle() Ratio {
	all := int64(0)
	for _, c := range l.cells {
		all += c.tokens
	}
	from, bytes, tokens, before := all*outer/8, int64(0), int64(0), int64(0)
	for _, c := range l.cells {
		if part := min(before+c.tokens, all-from) - max(before, from); part > 0 {
			bytes += int64(mulDiv(uint64(c.bytes), uint64(part), uint64(c.tokens), 0))
			tokens += part
		}
		before += c.tokens
	}
	return Ratio(mulDiv(uint64(bytes), 1000, uint64(tokens), uint64(tokens)/2)).Clamp()
}

// Ratio returns the present bytes per token, within its bounds.
func (l *Learner) Ratio() Ratio { return l.ratio.Clamp() }

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
