package batch

import (
	"math"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// served is a request of the log: its normalised latency, and the average batch of its lifetime.
type served struct {
	output  int
	latency float64
	batch   policies.Batch
}

// profileQoE measures as the paper does (section "QoE Model for Requests and Instances"): it keeps
// a batch of the given size in flight, and logs count requests after the first batch.
func profileQoE(t *testing.T, p cost.Profile, requests []trace.Request, size, count int) (log []served) {
	pool, err := kv.NewPool(kv.Layout{Blocks: 1 << 14, BlockTokens: 16, SlotBytes: 16, Regions: 1})
	testkit.NoError(t, err)
	defer pool.Close()
	s, err := New(Config{Model: newModel(t), Pool: pool, MaxBatch: size, MaxTokens: 8192, NoPrefixCache: true, Profile: p})
	testkit.NoError(t, err)
	// sums are those of the iterations so far, each weighted by its seconds.
	type sums struct {
		seconds float64
		batch   policies.Batch
	}
	var now sums
	begun := map[*Sequence]sums{}
	next := 0
	add := func() {
		r := requests[next%len(requests)]
		q := NewSequence(Request{Prompt: prompt(int(r.Input), 0, next), MaxOutput: int(r.Output), IgnoreEOS: true}, 16)
		begun[q] = now
		s.Add(q)
		next++
	}
	for range size {
		add()
	}
	for len(log) < count {
		step := s.Step()
		var b policies.Batch
		for q := range begun {
			b = b.Add(policies.Tokens(len(q.Prompt)), policies.Tokens(q.Length()))
		}
		w := step.Seconds
		now.seconds += w
		now.batch = now.batch.Plus(policies.Batch{N: w * b.N, SumI: w * b.SumI, SumI2: w * b.SumI2, SumL: w * b.SumL})
		for _, e := range step.Events {
			if e.Finish == Unfinished {
				continue
			}
			q, from := e.Sequence, begun[e.Sequence]
			delete(begun, q)
			if seconds := now.seconds - from.seconds; from.seconds > 0 { // not of the first batch
				f := 1 / seconds
				log = append(log, served{q.Output(), seconds / float64(q.Output()), policies.Batch{
					N: f * (now.batch.N - from.batch.N), SumI: f * (now.batch.SumI - from.batch.SumI),
					SumI2: f * (now.batch.SumI2 - from.batch.SumI2), SumL: f * (now.batch.SumL - from.batch.SumL),
				}})
			}
			add()
		}
	}
	return log
}

// regress is the paper's least squares of Q against F0…F4.
func regress(t *testing.T, log []served) policies.QoE {
	t.Helper()
	x, y := mat.NewDense(len(log), 5, nil), mat.NewVecDense(len(log), nil)
	scale := [5]float64{1, 1e2, 1e5, 1e8, 1e5}
	for i, r := range log {
		for k, f := range [5]float64{1, r.batch.N, r.batch.SumI, r.batch.SumI2, r.batch.SumL} {
			x.Set(i, k, f/scale[k])
		}
		y.SetVec(i, r.latency)
	}
	var d mat.VecDense
	testkit.NoError(t, d.SolveVec(x, y))
	at := func(k int) float64 { return d.AtVec(k) / scale[k] }
	return policies.QoE{D0: at(0), D1: at(1), D2: at(2), D3: at(3), D4: at(4)}
}

// errorsOf returns the median relative error of the predicted latencies, and the error of their
// sum.
func errorsOf(q policies.QoE, log []served) (median, mean float64) {
	var all []float64
	var predicted, measured float64
	for _, r := range log {
		p := q.OfRequest(r.batch)
		all = append(all, math.Abs(p-r.latency)/r.latency)
		predicted, measured = predicted+p, measured+r.latency
	}
	slices.Sort(all)
	return all[len(all)/2], predicted/measured - 1
}

// TestQoEModelAgreesWithTheLog regresses D0…D4 on logs of the emulator in virtual time, as the
// paper does, and compares the closed form of cost.Profile.QoEModel with the regression and with
// the log. The closed form spreads prefills over MeanOutput tokens; here it gets the mean output of
// the log. The raw seconds of a prefill in place of D2 and D3 are wrong by a factor.
func TestQoEModelAgreesWithTheLog(t *testing.T) {
	mix, _ := trace.Named("chat")
	mix.Requests, mix.Seed = 2000, 7
	requests := testkit.Must(mix.Generate())
	for _, name := range cost.Names() {
		p := testkit.Must(cost.Builtin(name))
		p.Kappa = 0 // not in the paper's model
		var log []served
		for _, size := range []int{1, 2, 4, 8, 16, 32, 64} {
			log = append(log, profileQoE(t, p, requests, size, 60+size)...)
		}
		fitted, held := log[:0:0], log[:0:0]
		output := 0.0
		for i, r := range log {
			output += float64(r.output) / float64(len(log))
			if i%4 == 0 {
				held = append(held, r)
			} else {
				fitted = append(fitted, r)
			}
		}
		closed := p.QoEModel()
		closed.D2, closed.D3 = closed.D2*cost.MeanOutput/output, closed.D3*cost.MeanOutput/output
		raw := policies.QoE{D0: p.D0, D1: p.D1, D2: p.D2, D3: p.D3, D4: p.D4}
		regressed := regress(t, fitted)

		median, sum := errorsOf(closed, held)
		fitMedian, fitSum := errorsOf(regressed, held)
		rawMedian, _ := errorsOf(raw, held)
		t.Logf("%s: closed form %.1f %% (sum %+.1f %%), regression %.1f %% (%+.1f %%), raw prefill %.0f %%; %.0f output tokens; %+v",
			name, 100*median, 100*sum, 100*fitMedian, 100*fitSum, 100*rawMedian, output, regressed)
		if median > 0.1 || math.Abs(sum) > 0.01 {
			t.Errorf("%s: the closed form is off by %.1f %%, the sum by %+.1f %%", name, 100*median, 100*sum)
		}
		for i := range held {
			held[i].latency = regressed.OfRequest(held[i].batch)
		}
		if median, sum := errorsOf(closed, held); median > 0.1 || math.Abs(sum) > 0.01 {
			t.Errorf("%s: the closed form is %.1f %% from the regression, its sum %+.1f %%", name, 100*median, 100*sum)
		}
		if rawMedian < 1 {
			t.Errorf("%s: with every prefill paid at every token, the error is only %.1f %%", name, 100*rawMedian)
		}
	}
}
