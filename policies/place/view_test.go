package place

import (
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// priced is a view with its scratch memory.
type priced struct {
	*View
	scratch Pricing
}

func newPriced() *priced { return &priced{View: NewView(testEngine, 0)} }

func (p *priced) price(now policies.Micros, w Waiting) int64 { return p.Price(now, w, &p.scratch) }

// TestViewKeepsSends checks the sends that a report includes, and that sends end.
func TestViewKeepsSends(t *testing.T) {
	v, w := newPriced(), Waiting{Length: 2000}.Weigh(100)
	idle := v.price(0, w)
	v.Send(1000, w)
	v.Report(500, &State{At: 500, Running: nil}) // as of before it was sent
	if p := v.price(1000, w); p <= idle {
		t.Errorf("a late report hides what was sent after it: %v, idle %v", p, idle)
	}
	v.Report(1001, &State{At: 1001, Running: nil})
	if p := v.price(1001, w); p != idle {
		t.Errorf("a report of an idle replica counts a request sent before: %v, idle %v", p, idle)
	}
	v.Send(1001, w)
	if p := v.price(3600*policies.Second, w); p < idle-1 || p > idle+1 {
		t.Errorf("an hour after its last request the replica costs %v, an idle one %v", p, idle)
	}
}

// TestViewWaitsForIteration checks that the end of the iteration that a report is of counts.
func TestViewWaitsForIteration(t *testing.T) {
	v, w := newPriced(), Waiting{Length: 2000}.Weigh(100)
	idle := v.price(0, w)
	v.Report(0, &State{At: policies.Second, Running: nil})
	want := idle + int64((w.Weight+w.FirstWeight)*1e9*v.state.congestion(2000))
	if p := v.price(0, w); p < want-1 || p > want+1 {
		t.Errorf("a second before an iteration ends a request costs %v, not %v", p, want)
	}
}

func TestViewAllocatesNothing(t *testing.T) {
	v, w := newPriced(), Waiting{Length: 2000}.Weigh(100)
	running := make([]Running, 30)
	for i := range running {
		running[i] = Running{Count: 1, Length: 1000, Longest: 1000, Remaining: policies.Tokens(10 * i), Weight: 0.01}
	}
	now := policies.Micros(0)
	decide := func() {
		now += 10_000
		v.Report(now, &State{At: now, Running: running})
		v.price(now, w)
		v.Send(now, w)
		v.price(now, w)
	}
	decide()
	if n := testing.AllocsPerRun(100, decide); n > 0 {
		t.Errorf("%v allocations a decision", n)
	}
}

func TestOutputs(t *testing.T) {
	var o Outputs
	expect := func(input, generated, most, low, high policies.Tokens) {
		t.Helper()
		if got := o.Expect(input, generated, most); got < low || got > high {
			t.Errorf("a prompt of %d with %d tokens, at most %d: %d expected, not %d to %d", input, generated, most, got, low, high)
		}
	}
	expect(100, 0, 0, DefaultOutput, DefaultOutput)
	expect(100, 1000, 0, 1001, 1200)
	expect(100, 0, 16, 16, 16)
	for range 100 {
		o.Observe(100, 50)
		o.Observe(100, 1000)
		o.Observe(5000, 10)
		o.Observe(100, 0) // no answer
	}
	expect(100, 0, 0, 525, 525)
	expect(5000, 0, 0, 10, 10)
	expect(100, 100, 0, 1000, 1000)
	expect(100, 0, 300, 300, 300)
	expect(100, 400, 300, 401, 401)
	expect(5000, 100, 0, 1000, 1000) // its octave has none as long
	expect(1<<40, 1<<40, 0, 1<<40+1, 1<<41)
	expect(-5, -5, 0, 1, 1000)
	// What is common now outweighs what was common once.
	for range 4 * maxOutputs {
		o.Observe(100, 20)
	}
	expect(100, 0, 0, 20, 60)
}

// TestViewWithoutReports checks that a replica which never reports takes bounded memory.
func TestViewWithoutReports(t *testing.T) {
	v := newPriced()
	for i := range 20_000 {
		v.Send(policies.Micros(i)*policies.Second/2, Waiting{Length: 100}.Weigh(10))
	}
	if n := max(len(v.sent), len(v.state.running), len(v.state.waiting)); n > 200 {
		t.Errorf("%d requests are remembered", n)
	}
}

// TestNoPriceIsNotFree checks that a price that is not a number attracts no requests.
func TestNoPriceIsNotFree(t *testing.T) {
	v := newPriced()
	v.state.held = math.NaN()
	v.state.AddRunning(Running{Count: 1, Length: 100, Longest: 100, Remaining: 10, Weight: 1})
	if p := v.price(0, Waiting{Length: 100}.Weigh(10)); p != maxPrice {
		t.Errorf("the price is %d", p)
	}
}
