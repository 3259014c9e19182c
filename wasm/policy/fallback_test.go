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
	if st := p.Stats(); st.Faults[host.Refused] != 7*rounds || st.Calls != 7*rounds {
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
