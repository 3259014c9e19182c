package policy

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// refusesAll is a module that refuses the calls of every kind.
func refusesAll() []byte {
	var all []hosttest.Func
	for k := abi.Partition; k < abi.NumKinds; k++ {
		all = append(all, hosttest.Function(k.Export(), nil, hosttest.Result(5, 0)))
	}
	return hosttest.Policy(all...).Encode()
}

// TestNativeAnswersEveryKind checks that the native policy answers a call of every kind that
// the module refuses.
func TestNativeAnswersEveryKind(t *testing.T) {
	p := running(t, Config{Instances: 1, Failures: -1}, host.Config{}, refusesAll())
	r := hosttest.NewRandom(3)
	const rounds = 20
	for range rounds {
		for k := abi.Partition; k < abi.NumKinds; k++ {
			testkit.NoError(t, r.Compare(k, hosttest.Every(p), hosttest.Every(hosttest.Native{})))
		}
	}
	// A few boundaries have more requests than the module's arena has room for.
	if st := p.Stats(); st.Faults[host.Refused]+st.Faults[host.TooLarge] != 7*rounds || st.Faults[host.TooLarge] > rounds || st.Calls != 7*rounds {
		t.Errorf("%+v", st)
	}
	if d, denied := p.Guard(change(4)); !denied || d.Code != 7 {
		t.Errorf("%+v, denied %v", d, denied)
	}
}

// TestLargeFailuresAreFew checks that the records of failed calls keep within KeepBytes.
func TestLargeFailuresAreFew(t *testing.T) {
	one := len(frameOf(&guardAdapter, abi.Call{Room: abi.MaxState}, change(100)))
	p := running(t, Config{Instances: 1, Failures: -1, Keep: 5, KeepBytes: 2*one + one/2}, host.Config{}, refusesAll())
	for n := range 12 {
		p.Guard(change(100))
		if got := p.Records(); len(got) != min(n+1, 2) || number(got[len(got)-1]) != uint64(n+1) {
			t.Errorf("%d records after %d calls", len(got), n+1)
		}
	}
}

// TestInstancesByDefault checks that a module has an instance per processor if it decides
// for requests, and one otherwise.
func TestInstancesByDefault(t *testing.T) {
	guard := hosttest.Policy(hosttest.Function(abi.Guard.Export(), nil, hosttest.Result(0, 0))).Encode()
	for _, c := range []struct {
		code []byte
		want int
	}{{guard, 1}, {hosttest.LeastLoadModule(), runtime.GOMAXPROCS(0)}} {
		if p := stopped(t, Config{}, c.code); len(p.slots) != c.want {
			t.Errorf("%d instances, want %d", len(p.slots), c.want)
		}
	}
}

// TestSlowModuleIsOneFault checks that a module that times out on every try of retryLate
// counts as one fault.
func TestSlowModuleIsOneFault(t *testing.T) {
	w := host.NewWatchdog()
	testkit.Run(t, w.Run)
	hc := host.Config{Watchdog: w}
	hc.Limits[abi.Select] = host.Limit{Fuel: meter.MaxFuel, Wall: 5 * time.Millisecond}
	var reported atomic.Int32
	p := running(t, Config{Instances: 1, Failures: -1, Faulted: func() { reported.Add(1) }}, hc, hosttest.LeastLoadModule(hosttest.Forever))
	frame := frameOf(&selectAdapter, abi.Call{}, bids(4))
	testkit.WaitFor(t, "it is a fault", func() bool { // once its thread is scheduled in all tries
		i := testkit.Must(p.retryLate(testkit.Must(p.instance()), frame))
		defer i.Close()
		if i.Dead() != nil {
			t.Error("the instance is dead")
		}
		return reported.Load() > 0
	})
	if n := reported.Load(); n != 1 {
		t.Errorf("%d faults", n)
	}
}

// TestRetryThatFails checks that a retry that fails for another reason than time counts as
// a fault of that cause, and returns a new instance.
func TestRetryThatFails(t *testing.T) {
	p := stopped(t, Config{Instances: 1, Failures: -1}, hosttest.LeastLoadModule(hosttest.Unreachable))
	i := testkit.Must(p.retryLate(testkit.Must(p.instance()), frameOf(&selectAdapter, abi.Call{}, bids(4))))
	defer i.Close()
	if st := p.Stats(); i.Dead() != nil || st.Faults[host.Trapped] != 1 {
		t.Errorf("%v: %+v", i.Dead(), st)
	}
}

// TestBreakerOpensOnce checks that faults after the breaker has opened are reported and do
// not open it again.
func TestBreakerOpensOnce(t *testing.T) {
	log, reported := new(testkit.Log), 0
	p := stopped(t, Config{Instances: 1, Failures: 2, Logger: log.Logger(), Faulted: func() { reported++ }}, refusesAll())
	for n := range 5 {
		p.countFault()
		if open := p.Stats().Open; open != (n >= 1) {
			t.Errorf("after %d faults: open %v", n+1, open)
		}
	}
	if p.Select(bids(4)); p.Stats().Calls != 0 || reported != 5 || log.Count("the breaker is open") != 1 {
		t.Errorf("%+v, reported %d times:\n%s", p.Stats(), reported, log)
	}
}

// TestRecordOfAFailure checks the fuel, the kind and the cause of a failed call's record,
// whether it was to be recorded or not, and that one that was not sent has no fuel.
func TestRecordOfAFailure(t *testing.T) {
	for _, every := range []int{0, 1} {
		p := stopped(t, Config{Instances: 1, Failures: -1, Every: every}, refusesAll())
		p.Select(bids(4))
		p.Select(bids(5000))
		got := p.Records()
		if len(got) != 2 || got[0].Cause != host.Refused || got[0].Fuel == 0 || got[1].Cause != host.TooLarge || got[1].Fuel != 0 {
			t.Fatalf("%+v", got)
		}
		for _, r := range got {
			if r.Kind != abi.Select || r.Module != p.config.Module.SHA256() {
				t.Errorf("%s of module %x", r.Kind, r.Module)
			}
		}
		if st := p.Stats(); st.Fuel.Last != 0 || st.Fuel.Max != got[0].Fuel {
			t.Errorf("%+v", st.Fuel)
		}
	}
}
