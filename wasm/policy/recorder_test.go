package policy

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestNativeRecorderRecordsAsTheHostDoes checks that a native policy and the same policy as a
// module leave the same records of the same calls, except for module and fuel.
func TestNativeRecorderRecordsAsTheHostDoes(t *testing.T) {
	module := running(t, Config{Every: 1, Instances: 1, Keep: 256}, host.Config{Cache: hosttest.Cache(t)}, hosttest.Guest(t))
	linked := NewNativeRecorder(natives, 1, 256, nil)
	r := hosttest.NewRandom(5)
	for range 20 {
		for k := abi.Partition; k < abi.NumKinds; k++ {
			testkit.NoError(t, r.Compare(k, hosttest.Every(module), hosttest.Every(linked)))
		}
	}
	got, want := linked.Records(), module.Records()
	if len(got) != 140 || len(want) != 140 {
		t.Fatalf("%d records, of the module %d", len(got), len(want))
	}
	for i := range got {
		g, w := got[i], want[i]
		// The value of an answer holds the length of its output; the rest is unused.
		if _, n := abi.Unpack(g.Result); g.Kind != abi.Select && g.Kind != abi.Place {
			g.Output, w.Output = g.Output[:n], w.Output[:n]
		}
		w.Module, w.Fuel = g.Module, 0
		g.Frame, w.Frame = g.Frame[80+8:], w.Frame[80+8:] // call and seed differ, because calls are numbered differently
		if !g.Equal(&w) {
			t.Errorf("record %d of %s: %+v, the module's %+v", i, g.Kind, g, w)
		}
	}
}

// TestNativeRecorderConcurrently records calls while records are read.
func TestNativeRecorderConcurrently(t *testing.T) {
	l := NewNativeRecorder(natives, 2, 8, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := range 20_000 {
				b := bids(n % 9)
				if l.Select(b) != natives.Selector.Select(b) {
					t.Error("wrong")
				}
			}
		})
	}
	seen := 0
	for range 1000 {
		for _, r := range l.Records() {
			b, s := abi.DecodeSelectCall(r.Frame, nil)
			i, err := abi.DecodeSelectResult(r.Result, len(b))
			if s != abi.OK || err != nil || i != natives.Selector.Select(b) {
				t.Fatalf("%v, %v, %d", s, err, i)
			}
			seen++
		}
	}
	wg.Wait()
	if len(l.Records()) != 8 {
		t.Errorf("%d records at the end, %d seen", len(l.Records()), seen)
	}
}

// TestNativeRecorderPassesErrorsOn checks that an error of the caller is returned and
// not recorded.
func TestNativeRecorderPassesErrorsOn(t *testing.T) {
	l := NewNativeRecorder(natives, 1, 0, nil)
	if _, err := l.Partition(policies.Workload{}); !errors.As(err, new(*policies.Violation)) {
		t.Error(err)
	}
	if r := l.Records(); len(r) != 0 {
		t.Errorf("recorded: %v", r)
	}
	d, denied := l.Guard(abi.Change{})
	if got := fmt.Sprint(d, denied, len(l.Records())); got != fmt.Sprint(abi.Denial{}, false, 1) {
		t.Error(got)
	}
}

func TestNativeRecorderDoesNotAllocate(t *testing.T) {
	testkit.SkipUnderRace(t)
	l := NewNativeRecorder(natives, 1, 3, nil) // each record holds frames of several sizes
	b := bids(16)
	a := policies.Arrival{Own: policies.Candidate{ID: "own"}, Peers: []policies.Candidate{{ID: "a"}, {ID: "b"}}}
	all := func() {
		l.Select(b)
		l.Quote(policies.Occupancy{Capacity: 1e6}, policies.Migration{Request: "r", Length: 100})
		l.Excess(1000, 10)
		l.Place(a)
	}
	for range 16 {
		all()
	}
	if n := testing.AllocsPerRun(1000, all); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestFaultedIsCalled checks that Faulted is called for each failure that counts, and
// that no breaker opens.
func TestFaultedIsCalled(t *testing.T) {
	reported := 0
	p := running(t, Config{Instances: 1, Failures: -1, Faulted: func() { reported++ }}, host.Config{}, hosttest.LeastLoadModule(hosttest.Result(5, 0), hosttest.Return))
	for range 20 {
		if p.Select(bids(5)) != natives.Selector.Select(bids(5)) {
			t.Fatal("wrong")
		}
	}
	p.Select(bids(5000)) // too large: no fault
	if st := p.Stats(); reported != 20 || st.Open || st.Faults[host.Refused] != 20 || st.Fuel.Max == 0 {
		t.Errorf("reported %d times: %+v", reported, st)
	}
}

// TestNativeRecorderSamples checks that one call in Every is recorded on average, all for 1
// and none for 0 and below.
func TestNativeRecorderSamples(t *testing.T) {
	const calls = 10_000
	for _, c := range []struct{ every, least, most uint64 }{{0, 0, 0}, {1, calls, calls}, {10, calls / 20, calls / 5}} {
		r := NewNativeRecorder(natives, int(c.every), 4, nil)
		for range calls {
			r.Excess(1000, 10)
		}
		if n := r.calls.Load(); n < c.least || n > c.most {
			t.Errorf("one in %d: %d of %d recorded", c.every, n, calls)
		}
	}
	r := NewNativeRecorder(natives, -1, 4, nil)
	if r.Excess(1000, 10); len(r.Records()) != 0 {
		t.Error("a rate below 0 records")
	}
}
