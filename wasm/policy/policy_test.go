package policy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// natives are the policies of which the Go guest consists.
var natives = func(n hosttest.Native) Native { return Native{n, n, n, n, n, n, n} }(hosttest.Native{})

// running makes a policy and runs it until the test ends. It then checks that all instances
// are closed.
func running(t testing.TB, c Config, hc host.Config, code []byte) *Policy {
	t.Helper()
	m := testkit.Must(host.Load(context.Background(), hc, code))
	c.Module = m
	if c.Native == (Native{}) {
		c.Native = natives
	}
	p, err := New(c)
	if err != nil {
		m.Close()
		t.Fatal(err)
	}
	stop := testkit.Run(t, p.Run)
	t.Cleanup(func() {
		stop()
		if n := m.Instances(); n != 0 {
			t.Errorf("%d instances are left", n)
		}
		// Calls after the end are answered as well.
		if p.config.Native == natives && p.Select(bids(3)) != (bidask.LeastLoad{}).Select(bids(3)) {
			t.Error("a call after Run is not answered")
		}
		m.Close()
	})
	return p
}

func bids(n int) []policies.Bid { return hosttest.Bids(n) }

// TestModuleAnswersAsNative calls a module in Go for every kind, and checks by Stats that the
// module answers.
func TestModuleAnswersAsNative(t *testing.T) {
	p := running(t, Config{Every: 1}, host.Config{Cache: hosttest.Cache(t)}, hosttest.Guest(t))
	r := hosttest.NewRandom(5)
	const rounds = 50
	for range rounds {
		for k := abi.Partition; k < abi.NumKinds; k++ {
			testkit.NoError(t, r.Compare(k, hosttest.Every(p), hosttest.Every(hosttest.Native{})))
		}
	}
	if _, err := p.Partition(policies.Workload{}); !errors.As(err, new(*policies.Violation)) {
		t.Errorf("an invalid workload: %v", err)
	}
	if st := p.Stats(); st.Calls != 7*rounds || st.Faults != [host.NumCauses]uint64{} || st.Open {
		t.Errorf("%+v", st)
	}
}

// TestPartitionerKeepsItsContract runs the contract tests of the interface on the module.
func TestPartitionerKeepsItsContract(t *testing.T) {
	policytest.TestPartitioner(t, running(t, Config{}, host.Config{Kinds: []abi.Kind{abi.Partition}, Cache: hosttest.Cache(t)}, hosttest.Guest(t)))
}

// TestEveryCallIsAnswered calls a module from many goroutines with few instances. The module
// traps in one of a hundred calls and gives an invalid answer in another, so that its
// instances are replaced meanwhile.
func TestEveryCallIsAnswered(t *testing.T) {
	code := hosttest.LeastLoadModule(
		hosttest.OneIn(100, hosttest.Unreachable),
		hosttest.OneIn(101, hosttest.Result(0, 1<<20), hosttest.Return),
		hosttest.OneIn(103, hosttest.Result(5, 0), hosttest.Return),
		hosttest.OneIn(1009, hosttest.Forever))
	const workers = 8
	many := uint64(testkit.Size(3, 10))
	for _, instances := range []int{1, 3} {
		p := running(t, Config{Instances: instances, Failures: 1 << 20, Every: 7}, host.Config{}, code)
		var wg sync.WaitGroup
		var wrong atomic.Int64
		var enough atomic.Bool
		for range workers {
			wg.Go(func() {
				for n := 0; !enough.Load(); n++ {
					b := bids(1 + n%16)
					if p.Select(b) != (bidask.LeastLoad{}).Select(b) {
						wrong.Add(1)
					}
					if p.Stats().Alive == 0 {
						runtime.Gosched() // to Run, which replaces the instances
					}
				}
			})
		}
		for !enough.Load() {
			p.Records()
			st := p.Stats()
			enough.Store(st.Faults[host.Trapped] > many && st.Faults[host.BadOutput] > many && st.Faults[host.Refused] > many && st.Faults[host.OutOfFuel] > 0 && st.Replaced > 2*many)
		}
		wg.Wait()
		if t.Logf("%d instances: %+v", instances, p.Stats()); wrong.Load() > 0 {
			t.Errorf("%d wrong answers", wrong.Load())
		}
	}
}

// TestBreakerOpens checks that the breaker opens exactly at the configured number of faults
// within the window.
func TestBreakerOpens(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(0, 0)
	// Every call fails and leaves the instance alive, so that the calls are counted
	// exactly.
	p := running(t, Config{Instances: 1, Failures: 3, Window: time.Minute, Clock: func() time.Time { return now },
		Logger: slog.New(slog.NewTextHandler(&log, nil))}, host.Config{}, hosttest.LeastLoadModule(hosttest.Result(5, 0), hosttest.Return))
	for range 10 { // too slowly to open it
		if got := p.Select(bids(5)); got != (bidask.LeastLoad{}).Select(bids(5)) {
			t.Fatalf("answered %d", got)
		}
		now = now.Add(31 * time.Second)
	}
	if st := p.Stats(); st.Open || st.Faults[host.Refused] != 10 {
		t.Fatalf("%+v", st)
	}
	for range 10 {
		p.Select(bids(5))
	}
	st := p.Stats()
	if !st.Open || st.Faults[host.Refused] != 12 || st.Calls != 12 {
		t.Errorf("%+v", st)
	}
	select {
	case <-p.Opened():
	default:
		t.Error("Opened is not closed")
	}
	if n := strings.Count(log.String(), "the breaker is open"); n != 1 {
		t.Errorf("it opened %d times:\n%s", n, &log)
	}
}

// TestWordsTooLarge checks that the native policy answers calls whose arguments exceed the
// frame limit, and that they are no faults.
func TestWordsTooLarge(t *testing.T) {
	p := running(t, Config{Instances: 1, Failures: 1, Every: 1}, host.Config{}, hosttest.LeastLoadModule())
	for range 3 {
		if b := bids(5000); p.Select(b) != (bidask.LeastLoad{}).Select(b) {
			t.Error("wrong")
		}
		p.Select(bids(2))
	}
	if st := p.Stats(); st.Open || st.Alive != 1 || st.Faults[host.TooLarge] != 3 {
		t.Errorf("%+v", st)
	}
}

// TestUnknownKinds checks that the native policy answers the kinds that the module does
// not decide, and that a kind without either has no answer.
func TestUnknownKinds(t *testing.T) {
	p := running(t, Config{Native: Native{Selector: bidask.LeastLoad{}, Detector: outlier.Detector{}}}, host.Config{}, hosttest.LeastLoadModule())
	if p.Excess(1000, 10) != (outlier.Detector{}).Excess(1000, 10) {
		t.Error("not the native detector's")
	}
	if at := p.Refine(policies.BoundaryView{Boundary: 7}); at != 7 {
		t.Error("a boundary moved", at)
	}
	if _, bid := p.Quote(policies.Occupancy{}, policies.Migration{}); bid {
		t.Error("a bid")
	}
	if p.Place(policies.Arrival{Peers: make([]policies.Candidate, 1)}) != "" {
		t.Error("forwarded")
	}
	if _, err := p.Partition(policytest.RandomWorkload(rand.New(rand.NewPCG(1, 1)))); err != policies.ErrInfeasible {
		t.Error(err)
	}
	if _, denied := p.Guard(abi.Change{}); denied {
		t.Error("denied")
	}
}

func TestConfigIsChecked(t *testing.T) {
	m := testkit.Must(host.Load(context.Background(), host.Config{}, hosttest.LeastLoadModule()))
	defer m.Close()
	for want, c := range map[string]Config{
		"Module":        {Native: natives},
		"native policy": {Module: m},
		"Instances":     {Module: m, Native: natives, Instances: -1},
		"Window":        {Module: m, Native: natives, Window: -1},
		"Every":         {Module: m, Native: natives, Every: -1},
		"unknown kind":  {Module: m, Native: natives, Configuration: []byte("it takes none")},
	} {
		_, err := New(c)
		testkit.WantError(t, err, want)
	}
	if m.Instances() != 0 {
		t.Error("instances are left")
	}
}

// TestFailuresAreRecorded checks that a failed call is recorded with the frame that was sent,
// even if the guest has overwritten it.
func TestFailuresAreRecorded(t *testing.T) {
	p := running(t, Config{Instances: 1, Keep: 2}, host.Config{}, hosttest.LeastLoadModule(
		hosttest.I32(hosttest.Arena), hosttest.I32(255), hosttest.I32(64), hosttest.Op(0xfc, 11, 0), hosttest.Unreachable))
	p.Select(bids(4))
	records := p.Records()
	if len(records) != 1 || records[0].Cause != host.Trapped || records[0].Kind != abi.Select || records[0].Fuel != 1 || records[0].Module != p.config.Module.SHA256() {
		t.Fatalf("%+v", records)
	}
	if got, s := abi.DecodeSelectCall(records[0].Frame, nil); s != abi.OK || len(got) != 4 || got[3] != bids(4)[3] {
		t.Errorf("%v, %v", got, s)
	}
}

func TestCallsDoNotAllocate(t *testing.T) {
	testkit.SkipUnderRace(t)
	p := running(t, Config{Every: 16}, host.Config{}, hosttest.LeastLoadModule())
	b := bids(16)
	for range 4096 { // so that the memory of the records is allocated
		p.Select(b)
	}
	if n := testing.AllocsPerRun(1000, func() { p.Select(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestFirstCallsDoNotAllocate checks that the first calls after Warm do not allocate, nor do
// their records.
func TestFirstCallsDoNotAllocate(t *testing.T) {
	testkit.SkipUnderRace(t)
	// A record is used for the first time only once: each try takes a new policy.
	least := math.Inf(1)
	for range 3 {
		p := running(t, Config{Every: 1, Instances: 1}, host.Config{}, hosttest.LeastLoadModule())
		b := bids(16)
		testkit.NoError(t, p.Warm([][]byte{frameOf(&selectAdapter, abi.Call{}, b)}))
		half := func() {
			for range DefaultKeep / 2 {
				p.Select(b)
			}
		}
		least = min(least, testing.AllocsPerRun(1, half)) // other goroutines of the process allocate as well
		if n := len(p.Records()); n != DefaultKeep {
			t.Errorf("%d records", n)
		}
	}
	if least != 0 {
		t.Errorf("%v allocations", least)
	}
}

// TestRecordsAreApart checks that writing a record does not change the next one, whether its
// reserved memory is larger or smaller than needed.
func TestRecordsAreApart(t *testing.T) {
	for _, output := range []int{0, 8, 40} {
		r := make(ring, 0, DefaultKeep+2)
		r.reserve(100, 24)
		for n := range uint64(DefaultKeep + 2) {
			for at := range n {
				r.fetch(at)
			}
			r = r[:n+1]
			r[n].Frame = append(r[n].Frame, bytes.Repeat([]byte{byte(n)}, 90+int(n)%20)...)
			r[n].Output = append(r[n].Output, bytes.Repeat([]byte{byte(n)}, output)...)
		}
		for n := range r {
			all := slices.Concat(r[n].Frame, r[n].Output)
			if len(all) != 90+n%20+output || bytes.Count(all, []byte{byte(n)}) != len(all) {
				t.Errorf("record %d, with %d bytes of output: %x", n, output, all)
			}
		}
		r.reserve(100, 24) // the test writes all of them
	}
}

func BenchmarkSelect(b *testing.B) {
	words := bids(16)
	p := running(b, Config{Every: 1024}, host.Config{}, hosttest.LeastLoadModule())
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Select(words)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				p.Select(words)
			}
		})
	})
	g := running(b, Config{Every: 1024}, host.Config{Cache: hosttest.Cache(b)}, hosttest.Guest(b))
	b.Run("go", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			g.Select(words)
		}
	})
}
