package length

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// teach passes n requests with about the ratio to the Learner, each varied by up to the
// noise, with lengths from 16 to 16k tokens.
func teach(l *Learner, r *rand.Rand, n int, ratio, noise float64) {
	for range n {
		tokens := math.Exp2(4 + 10*r.Float64())
		f := ratio * (1 + noise*(2*r.Float64()-1))
		l.Observe(int64(tokens*f), policies.Tokens(tokens), 0)
	}
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within*want {
		t.Errorf("%s is %.4f, want %.4f ± %.0f %%", what, got, want, within*100)
	}
}

func TestLearnerLearns(t *testing.T) {
	for _, c := range []struct {
		name         string
		ratio, noise float64
		err          float64 // the mean of |x| for uniform x is half its bound
	}{
		{"prose", 4.4, 0.1, 0.05}, {"code", 3.1, 0.2, 0.1}, {"Chinese", 2.0, 0.1, 0.05}, {"base64", 1.3, 0, 0.003}, {"blanks", 12, 0.1, 0.05},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l Learner
			r := rand.New(rand.NewPCG(9, 10))
			teach(&l, r, 4000, c.ratio, c.noise)
			near(t, "the ratio", l.Ratio().Float(), c.ratio, 0.03)
			if got := l.RelativeError(); got > c.err*1.3+0.01 || got < c.err*0.5 {
				t.Errorf("the error is %.3f, want about %.3f", got, c.err)
			}
		})
	}
}

func TestLearnerForgets(t *testing.T) {
	var l Learner
	r := rand.New(rand.NewPCG(11, 12))
	teach(&l, r, 5000, 4.5, 0.1)
	teach(&l, r, 3000, 2.2, 0.1)
	near(t, "the ratio after a change", l.Ratio().Float(), 2.2, 0.03)
	near(t, "the error after a change", l.RelativeError(), 0.05, 0.5)
}

func TestLearnerResistsOutliers(t *testing.T) {
	var l Learner
	r := rand.New(rand.NewPCG(13, 14))
	teach(&l, r, 2000, 4, 0.05)
	for range 1000 {
		teach(&l, r, 19, 4, 0.05)
		// A megabyte that the engine counted as ten tokens, and the reverse.
		l.Observe(1<<20, 10, 0)
		l.Observe(3, 1<<20, 0)
	}
	near(t, "the ratio", l.Ratio().Float(), 4, 0.25)
	l = Learner{}
	teach(&l, r, 2000, 4, 0.05)
	l.Observe(1<<50, 1<<20, 0)
	near(t, "the ratio after one huge outlier", l.Ratio().Float(), 4, 0.02)
}

// TestLearnerResistsLongPrompts has a client whose few prompts are much longer than all others', and have other text:
// they do not decide what holds for all.
func TestLearnerResistsLongPrompts(t *testing.T) {
	for _, odd := range []float64{1, 10.4, 16} {
		var l Learner
		r := rand.New(rand.NewPCG(17, 18))
		for range 100 {
			for range 20 {
				n := 100 + r.IntN(300)
				l.Observe(int64(5.5*float64(n)*(0.9+0.2*r.Float64())), policies.Tokens(n), 0)
			}
			l.Observe(int64(odd*16384), 16384, 0)
		}
		near(t, "the ratio", l.Ratio().Float(), 5.5, 0.05)
	}
}

// TestLearnerWeighsUncached checks that a prompt counts by what its engine had to compute of it.
func TestLearnerWeighsUncached(t *testing.T) {
	for cached, want := range map[policies.Tokens]float64{0: 9, 1990: 5.5, 2000: 5.5, 1 << 40: 5.5, -5: 9} {
		l, r := NewLearner(5500), rand.New(rand.NewPCG(19, 20))
		for range 300 {
			teach(l, r, 1, 5.5, 0.05)
			l.Observe(5*9*400, 2000, cached)
			l.Observe(5*9*400, 2000, cached)
		}
		near(t, "the ratio", l.Ratio().Float(), want, 0.03)
	}
}

func TestLearnerStaysBounded(t *testing.T) {
	for _, c := range []struct {
		bytes  int64
		tokens policies.Tokens
		want   Ratio
	}{{1, 1 << 40, MinRatio}, {math.MaxInt64, 1, MaxRatio}, {math.MaxInt64, math.MaxInt64, 1000}} {
		var l Learner
		for range 20_000 {
			l.Observe(c.bytes, c.tokens, 0)
		}
		if got := l.Ratio(); got < c.want*98/100 || got > c.want*102/100 {
			t.Errorf("%d bytes of %d tokens: ratio %d, want %d", c.bytes, c.tokens, got, c.want)
		}
		if e := l.RelativeError(); e < 0 || e > 10 {
			t.Errorf("error %v is out of bounds", e)
		}
	}
}

func TestLearnerIgnoresNothing(t *testing.T) {
	var l Learner
	l.Observe(0, 5, 0)
	l.Observe(5, 0, 0)
	l.Observe(-1, -1, 0)
	if l.Observations() != 0 || l.Ratio() != DefaultRatio || l.RelativeError() != 0 {
		t.Errorf("learnt from nothing: %+v", l)
	}
	if got := NewLearner(2500).Estimator().BytesPerToken; got != 2500 {
		t.Errorf("begins at %d, want 2500", got)
	}
}

// TestLearnerErrorMatchesAFloatMean compares the fixed-point error with the same
// exponential mean in floating point.
func TestLearnerErrorMatchesAFloatMean(t *testing.T) {
	var l Learner
	r := rand.New(rand.NewPCG(15, 16))
	var sum, weight float64
	for range 3000 {
		exact := policies.Tokens(1 + r.IntN(5000))
		text := int64(float64(exact) * (3 + 2*r.Float64()))
		e := math.Abs(float64(l.Estimator().FromContentLength(text)-exact)) / float64(exact)
		sum += e - sum/(1<<memory)
		weight += 1 - weight/(1<<memory)
		l.Observe(text, exact, 0)
	}
	near(t, "the error", l.RelativeError(), sum/weight, 0.001)
}

// TestZeroLearner checks that the zero value learns as one that starts at the default.
func TestZeroLearner(t *testing.T) {
	var zero Learner
	other := NewLearner(DefaultRatio)
	for i := range 5 {
		zero.Observe(int64(100*i), 40, 0)
		other.Observe(int64(100*i), 40, 0)
		if zero.Ratio() != other.Ratio() || zero.RelativeError() != other.RelativeError() {
			t.Errorf("after %d: ratio %v, want %v", i, zero.Ratio(), other.Ratio())
		}
	}
}
