package loadtracker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// ledger is a simple reference implementation of the counters.
type ledger struct {
	arrived, input, cached, generated, finished, output int64
	prefilled, refound                                  int64
	now                                                 float64
	t                                                   *testing.T
}

func (l *ledger) at(now float64) {
	if now < l.now {
		l.t.Errorf("time goes back from %g to %g", l.now, now)
	}
	l.now = now
}
func (l *ledger) CountArrival(now float64, input, cached policies.Tokens) {
	l.at(now)
	l.arrived, l.input, l.cached = l.arrived+1, l.input+int64(input), l.cached+int64(cached)
}
func (l *ledger) CountPrefill(now float64, input, cached policies.Tokens) {
	l.at(now)
	l.prefilled, l.refound = l.prefilled+int64(input), l.refound+int64(cached)
}
func (l *ledger) CountTokens(now float64, length policies.Tokens, n int) {
	l.at(now)
	l.generated += int64(n)
}
func (l *ledger) CountFinish(now float64, input, output policies.Tokens) {
	l.at(now)
	l.finished, l.output = l.finished+1, l.output+int64(output)
}
func (l *ledger) Rates(now float64) policies.Flow { l.at(now); return policies.NewFlow(edges) }

var edges = policies.BucketEdges(4096, 1)

func newTracker(t *testing.T) (*Tracker, *ledger) {
	l := &ledger{t: t}
	return New(Config{Edges: edges, Counter: l}), l
}

func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, l := newTracker(t)
		w := tr.Begin(Arrival{Estimate: 90, RoutedEstimate: 90, TextBytes: 400})
		v := tr.Begin(Arrival{Estimate: 10})
		if got := tr.State(); got.Load != (policies.Load{Waiting: 2, Promised: 100}) || got.BytesPerToken != 0 {
			t.Errorf("two that wait: %+v", got)
		}
		w.SetInput(100)
		time.Sleep(time.Second)
		w.AddOutput(1)
		for range 10 {
			time.Sleep(50 * time.Millisecond)
			w.AddOutput(2)
		}
		got := tr.State()
		if got.Load.Running != 1 || got.Load.Waiting != 1 || got.Load.Held != 121 || got.Load.Promised != 10 {
			t.Errorf("one runs: %+v", got.Load)
		}
		if math.Abs(got.Load.Iteration-0.025) > 1e-9 {
			t.Errorf("two tokens each 50 ms are %g s a token", got.Load.Iteration)
		}
		if b := got.Snapshot[policies.BucketOf(edges, 121)]; b.N != 1 || b.SumI != 100 || b.SumL != 121 {
			t.Errorf("snapshot: %+v", got.Snapshot)
		}
		if math.Abs(got.EstimateError-0.1) > 1e-9 || got.BytesPerToken != 0 {
			t.Errorf("estimate error %g, bytes per token %g before the engine has said what was cached", got.EstimateError, got.BytesPerToken)
		}
		if l.generated != 21 || l.arrived != 0 {
			t.Errorf("counted %+v", l)
		}
		w.AddOutput(9)
		if b := tr.State().Snapshot[policies.BucketOf(edges, 130)]; b.N != 1 || b.SumI != 100 || b.SumI2 != 1e4 || b.SumL != 130 {
			t.Errorf("a request that has grown counts by its present length: %+v", b)
		}
		w.SetUsage(100, 32, 64)
		w.End()
		w.End()
		v.End()
		if l.generated != 32 || l.arrived != 1 || l.cached != 64 || l.output != 32 {
			t.Errorf("at the end: %+v", l)
		}
		if got := tr.State(); got.Load != (policies.Load{}) || got.BytesPerToken <= 0 {
			t.Errorf("none is left: %+v, %g bytes per token", got.Load, got.BytesPerToken)
		}
	})
}

func TestUnstreamedWork(t *testing.T) {
	tr, l := newTracker(t)
	w := tr.Begin(Arrival{Estimate: 50})
	w.AddOutput(0)
	if got := tr.State().Load; got.Running != 1 || got.Held != 50 {
		t.Errorf("%+v", got)
	}
	w.SetUsage(60, 7, 0)
	w.End()
	if l.generated != 7 || l.input != 60 {
		t.Errorf("%+v", l)
	}
}

// TestSumsUnderConcurrency checks that no token or request is counted twice or lost while updates
// and reads run concurrently with hundreds of requests.
func TestSumsUnderConcurrency(t *testing.T) {
	tr, l := newTracker(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var tokens, inputs int64
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if r := tr.State(); r.Load.Validate() != nil {
					t.Error(r.Load)
				}
			}
		}
	})
	var requests sync.WaitGroup
	for i := range 200 {
		requests.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			input, n := 1+rng.Int64N(3000), rng.IntN(300)
			w := tr.Begin(Arrival{Estimate: 5, TextBytes: 4 * input})
			w.SetInput(policies.Tokens(input))
			for range n {
				w.AddOutput(1)
			}
			w.End()
			mu.Lock()
			tokens, inputs = tokens+int64(n), inputs+input
			mu.Unlock()
		})
	}
	requests.Wait()
	close(stop)
	wg.Wait()
	if l.generated != tokens || l.output != tokens || l.input != inputs || l.arrived != 200 {
		t.Errorf("counted %+v, want %d tokens of %d", l, tokens, inputs)
	}
}

func TestTokenAllocations(t *testing.T) {
	tr, _ := newTracker(t)
	w := tr.Begin(Arrival{})
	if n := testing.AllocsPerRun(100, func() { w.AddOutput(1) }); n != 0 {
		t.Errorf("a token costs %g allocations", n)
	}
	w.End()
}

func BenchmarkAddOutput(b *testing.B) {
	tr := New(Config{Edges: edges, Counter: &ledger{}})
	b.RunParallel(func(pb *testing.PB) {
		w := tr.Begin(Arrival{})
		for pb.Next() {
			w.AddOutput(1)
		}
		w.End()
	})
}

func BenchmarkUpdate2000(b *testing.B) {
	tr := New(Config{Edges: edges, Counter: &ledger{}})
	for range 2000 {
		w := tr.Begin(Arrival{Estimate: 1000})
		w.AddOutput(1)
	}
	for b.Loop() {
		tr.Update()
	}
}

// TestSequences checks that a request for several sequences of several prompts counts as so many requests, with
// the sums of its tokens, and teaches nothing that holds for one prompt or one sequence only.
func TestSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, l := newTracker(t)
		w := tr.Begin(Arrival{Estimate: 60, Others: 40, RoutedEstimate: 60, TextBytes: 900, Prompts: 2, Sequences: 6})
		if got := tr.State(); got.Load != (policies.Load{Waiting: 6, Promised: 100}) {
			t.Errorf("it waits: %+v", got.Load)
		}
		w.AddOutput(6)
		time.Sleep(50 * time.Millisecond)
		w.AddOutput(7)
		got := tr.State()
		if got.Load != (policies.Load{Running: 6, Held: 113}) {
			t.Errorf("it runs, and the time between the tokens of a sequence is not known: %+v", got.Load)
		}
		if b := got.Snapshot[policies.BucketOf(edges, 52)]; b.N != 6 || b.SumI != 300 || b.SumL != 6*52 {
			t.Errorf("snapshot: %+v", got.Snapshot)
		}
		w.SetUsage(110, 20, 30)
		w.End()
		if l.arrived != 6 || l.finished != 6 || l.generated != 20 || l.output != 20 || l.input-l.cached != 110-30 || l.input != 6*55 {
			t.Errorf("counted %+v", l)
		}
		if got := tr.State(); got.Load != (policies.Load{}) || got.BytesPerToken != 0 || got.EstimateError != 0 {
			t.Errorf("at the end: %+v", got)
		}
		tr.Begin(Arrival{Estimate: 1, Prompts: 1 << 40, Sequences: 1 << 50})
		if n := tr.State().Load.Waiting; n != MaxSequences {
			t.Errorf("one request counts as %d sequences", n)
		}
	})
}

// TestRatioIsNotPoisoned sends one long prompt again and again among many short ones: neither it, nor what the
// engine had cached, counts more than once for the ratio.
func TestRatioIsNotPoisoned(t *testing.T) {
	for _, how := range []string{"repeated", "cached"} {
		tr, _ := newTracker(t)
		for i := range 2100 {
			a, exact, cached := Arrival{TextBytes: 1100}, policies.Tokens(200), policies.Tokens(0)
			if i%2 == 0 { // half of the requests
				a.TextBytes, exact = 170_000, 16_384
				if a.Repeated = tr.NotePrompt([]byte("long")); how == "cached" {
					a.Repeated = false
				}
				if how == "cached" && i > 0 {
					cached = exact - 16
				}
			} else if tr.NotePrompt(fmt.Append(nil, i)) {
				t.Fatal("another prompt is taken for a repeated one")
			}
			w := tr.Begin(a)
			w.SetUsage(exact, 1, cached)
			w.End()
		}
		if got := tr.State().BytesPerToken; math.Abs(got-5.5) > 0.1 {
			t.Errorf("%s: %g bytes per token, want 5.5", how, got)
		}
	}
	tr, _ := newTracker(t)
	for range 2 {
		if tr.NotePrompt(nil) {
			t.Error("requests without a prompt are taken for equal ones")
		}
	}
}

// TestForgedLengths checks that no reported length makes the state impossible to report.
func TestForgedLengths(t *testing.T) {
	tr, _ := newTracker(t)
	for range 3 {
		tr.Begin(Arrival{Estimate: policies.Unbounded, RoutedEstimate: policies.Unbounded})
	}
	w := tr.Begin(Arrival{Estimate: policies.Unbounded, RoutedEstimate: policies.Unbounded})
	w.SetInput(5)
	v := tr.Begin(Arrival{})
	v.SetInput(policies.Unbounded)
	v.AddOutput(1)
	v.SetUsage(policies.Unbounded, policies.Unbounded, policies.Unbounded)
	got := tr.State()
	if l := got.Load; l.Promised != 3*maxLength+5 || l.Held != 2*maxLength {
		t.Errorf("the load is %+v", l)
	}
	if got.EstimateError != maxError {
		t.Errorf("the estimates' error is %g, want %d", got.EstimateError, maxError)
	}
}

// TestEndMoved checks that a request that migrates twice counts as one arrival and one end, that
// each token is counted where it was generated, and that the request's length counts at the new
// replica at once.
func TestEndMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, la := newTracker(t)
		b, lb := newTracker(t)
		c, lc := newTracker(t)
		w := a.Begin(Arrival{Estimate: 90, RoutedEstimate: 90})
		w.SetInput(100)
		w.AddOutput(10)
		w.SetCached(64)

		live := b.Begin(Arrival{Input: 100, Output: 10, HasKV: true})
		if got := b.State().Load; got.Running != 1 || got.Held != 110 || got.Waiting != 0 {
			t.Errorf("taken over with its KV: %+v", got)
		}
		w.EndMoved()
		w.End()
		time.Sleep(time.Second)
		live.SetInput(110) // the engine's count of prompt tokens
		live.AddOutput(5)
		if got := live.Counts(); got != (Counts{100, 15, 0, true, time.Now()}) {
			t.Errorf("%+v", got)
		}

		anew := c.Begin(Arrival{Input: 100, Output: 15})
		if got := c.State().Load; got.Waiting != 1 || got.Promised != 115 || got.Running != 0 {
			t.Errorf("to be computed anew: %+v", got)
		}
		live.EndMoved()
		anew.AddOutput(3)
		anew.SetUsage(115, 3, 112)
		if got := c.State().Load; got.Running != 1 || got.Held != 118 {
			t.Errorf("it runs: %+v", got)
		}
		anew.End()
		c.Begin(Arrival{Input: 100, Output: 20}).EndMoved() // the request was never computed

		if la.arrived != 1 || la.input != 100 || la.cached != 64 || la.generated != 10 || la.finished != 0 {
			t.Errorf("where it began: %+v", la)
		}
		if lb.arrived != 0 || lb.generated != 5 || lb.finished != 0 || lb.prefilled != 0 {
			t.Errorf("in between: %+v", lb)
		}
		if lc.arrived != 0 || lc.prefilled != 115 || lc.refound != 112 || lc.generated != 3 || lc.finished != 1 || lc.output != 18 {
			t.Errorf("where it ends: %+v", lc)
		}
	})
}
