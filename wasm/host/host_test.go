package host

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

func load(t testing.TB, c Config, code []byte) *Module {
	t.Helper()
	m := testkit.Must(Load(context.Background(), c, code))
	t.Cleanup(func() {
		if n := m.Instances(); n != 0 {
			t.Errorf("%d instances are left", n)
		}
		testkit.NoError(t, m.Close())
	})
	return m
}

func instance(t testing.TB, m *Module) *Instance {
	t.Helper()
	i := testkit.Must(m.Instantiate())
	t.Cleanup(func() { i.Close() })
	return i
}

// hand returns an instance of an assembled policy.
func hand(t testing.TB, functions ...hosttest.Func) *Instance {
	t.Helper()
	return instance(t, load(t, Config{}, hosttest.Policy(functions...).Encode()))
}

// selects returns a bid-select function with this body.
func selects(body ...[]byte) hosttest.Func {
	return hosttest.Function(abi.Select.Export(), []byte{hosttest.TypeI32, hosttest.TypeI64}, body...)
}

func sixteen() []policies.Bid { return hosttest.Bids(16) }

func TestHandMadePolicySelects(t *testing.T) {
	i := hand(t, hosttest.LeastLoad())
	bids := sixteen()
	for n := range len(bids) + 1 {
		got, err := i.Select(abi.Call{}, bids[:n])
		if want := (bidask.LeastLoad{}).Select(bids[:n]); err != nil || got != want {
			t.Errorf("%d bids: %d, %v; want %d", n, got, err, want)
		}
	}
	if _, _, err := i.Quote(abi.Call{}, abi.QuoteArgs{}); CauseOf(err) != Unknown {
		t.Errorf("quote: %v", err)
	}
	if i.Dead() != nil {
		t.Error(i.Dead())
	}
	if i.Calls() < uint64(len(bids)) {
		t.Errorf("%d calls were counted", i.Calls())
	}
}

// TestFaults makes calls that must fail with a known cause, and checks that the instance is
// dead after exactly those that leave it in an unknown state.
func TestFaults(t *testing.T) {
	const bids = 3
	h := func(body ...[]byte) hosttest.Func { return selects(body...) }
	for _, c := range []struct {
		name  string
		f     hosttest.Func
		cause Cause
		text  string
	}{
		{"unreachable", h(hosttest.Unreachable), Trapped, "unreachable"},
		{"division by zero", h(hosttest.I64(1), hosttest.I64(0), hosttest.Op(0x7f)), Trapped, "divide by zero"},
		{"out of bounds", h(hosttest.I32(-8), hosttest.Load64(0)), Trapped, "out of bounds"},
		{"endless", h(hosttest.Forever, hosttest.I64(0)), OutOfFuel, "unreachable"},
		{"index", h(hosttest.Result(0, bids)), BadOutput, "rule"},
		{"great index", h(hosttest.Result(0, 1<<31)), BadOutput, "rule"},
		{"status 6", h(hosttest.Result(6, 0)), BadOutput, "unknown status"},
		{"status 2^31", h(hosttest.Result(1<<31, 0)), BadOutput, "unknown status"},
		{"unsupported", h(hosttest.Result(2, 0)), Refused, "does not support"},
		{"bad frame", h(hosttest.Result(3, 0)), Refused, "could not parse the frame"},
		{"short", h(hosttest.Result(4, 1<<20)), Refused, "more space"},
		{"failed", h(hosttest.Result(5, 0)), Refused, "gave up"},
		{"recursion", h(hosttest.Get(0), hosttest.Call(1)), Trapped, "call stack exceeded 1048576 bytes"},
		{"memory storm", h(hosttest.Loop(hosttest.I32(1), hosttest.Grow, hosttest.Drop, hosttest.Br(0)), hosttest.I64(0)), OutOfFuel, "unreachable"},
		{"frame overwritten", h(hosttest.I32(hosttest.Arena), hosttest.I32(255), hosttest.I32(4096), hosttest.Op(0xfc, 11, 0), hosttest.Result(0, 1)), 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := hand(t, c.f)
			_, err := i.Select(abi.Call{}, sixteen()[:bids])
			if CauseOf(err) != c.cause {
				t.Fatalf("%v, want %v", err, c.cause)
			}
			if c.cause == 0 {
				return
			}
			if !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q, it should have %q, in one line", err, c.text)
			}
			_, again := i.Select(abi.Call{}, sixteen()[:bids])
			want := c.cause
			if c.cause.Fatal() {
				want = Dead
			}
			if CauseOf(again) != want || c.cause.Fatal() != (i.Dead() != nil) {
				t.Errorf("the next call: %v", again)
			}
		})
	}
}

// TestRunawayIsCutAtAnExactTick checks the fuel of an endless loop: one tick for entering
// the function, and one for each round.
func TestRunawayIsCutAtAnExactTick(t *testing.T) {
	count := selects(hosttest.Loop(
		hosttest.I32(512), hosttest.I32(512), hosttest.Load32(0), hosttest.I32(1), hosttest.Add, hosttest.Store32(0), hosttest.Br(0)), hosttest.I64(0))
	for _, fuel := range []int64{2, 1000, 50_000, 1_000_000} {
		var c Config
		c.Limits[abi.Select].Fuel = fuel
		i := instance(t, load(t, c, hosttest.Policy(count).Encode()))
		_, err := i.Select(abi.Call{}, sixteen())
		rounds, _ := i.memory.ReadUint32Le(512)
		if CauseOf(err) != OutOfFuel || i.Fuel() != fuel+1 || int64(rounds) != fuel-1 {
			t.Errorf("fuel %d: %v, %d ticks, %d rounds", fuel, err, i.Fuel(), rounds)
		}
	}
}

// TestDeepRecursion nests large frames as deeply as possible, and checks that the engine's
// stack and the allocations stay within the limits of the kind, although the fuel would
// suffice for a hundred times as much.
func TestDeepRecursion(t *testing.T) {
	var locals, before, after []byte
	for k := range byte(100) {
		locals = append(locals, hosttest.TypeI64)
		before = hosttest.Cat(before, hosttest.Get(0), hosttest.Load64(8*uint32(k)), hosttest.Set(1+k))
		after = hosttest.Cat(after, hosttest.Get(1+k), hosttest.Op(0x7c))
	}
	deep := hosttest.Function(abi.Select.Export(), locals, before, hosttest.Get(0), hosttest.Call(1), after)
	for _, stack := range []int64{64 << 10, callStack, 4 * callStack} {
		var c Config
		c.Limits[abi.Configure].Stack, c.Limits[abi.Select].Stack = stack, stack
		i := instance(t, load(t, c, hosttest.Policy(deep).Encode()))
		var was, is runtime.MemStats
		runtime.ReadMemStats(&was)
		_, err := i.Select(abi.Call{}, sixteen())
		runtime.ReadMemStats(&is)
		if CauseOf(err) != Trapped || !strings.Contains(err.Error(), "call stack exceeded") || len(err.Error()) > 200 {
			t.Error(err)
		}
		// The engine's stack is in its own struct, and grows by doubling.
		engine := reflect.ValueOf(i.fns[abi.Select]).Elem().FieldByName("stack").Len()
		if grown := is.TotalAlloc - was.TotalAlloc; int64(engine) > 3*stack || int64(grown) > 6*stack+1<<20 {
			t.Errorf("of %d bytes the engine took %d, %d were allocated", stack, engine, grown)
		} else {
			t.Logf("of %d bytes the engine took %d, %d were allocated, %d ticks", stack, engine, grown, i.Fuel())
		}
	}
}

// TestNoCauseIsNotFatal checks that an instance stays alive after a call without a fault.
func TestNoCauseIsNotFatal(t *testing.T) {
	for c := range Cause(NumCauses) {
		if want := c != 0 && c != Refused && c != TooLarge && c != Unknown; c.Fatal() != want {
			t.Errorf("%d, %q: fatal %v", c, c, c.Fatal())
		}
	}
}

func TestWatchEndsWhatFuelDoesNot(t *testing.T) {
	w := NewWatchdog()
	testkit.Run(t, w.Run)
	c := Config{Watchdog: w}
	c.Limits[abi.Select].Fuel = meter.MaxFuel
	c.Limits[abi.Select].Wall = time.Second // the good calls may be held up
	m := load(t, c, hosttest.Policy(hosttest.LeastLoad(hosttest.OneIn(5, hosttest.Forever))).Encode())
	i := instance(t, m)
	for id := uint64(1); id < 5; id++ {
		if _, err := i.Select(abi.Call{ID: id}, sixteen()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := i.Select(abi.Call{ID: 5}, sixteen())
	if CauseOf(err) != TimedOut || i.Dead() == nil {
		t.Errorf("an endless call: %v", err)
	}
	if f := i.Fuel(); f < 0 || f > meter.MaxFuel {
		t.Errorf("it burnt %d ticks", f)
	}
	// Another instance is not affected.
	if _, err := instance(t, m).Select(abi.Call{ID: 1}, sixteen()); err != nil {
		t.Error(err)
	}
}

// TestWatchSparesTheNextCall checks that a call that ends while the watchdog stops it either
// times out itself, or is answered and leaves the next call running.
func TestWatchSparesTheNextCall(t *testing.T) {
	w := NewWatchdog()
	c := Config{Watchdog: w}
	m := load(t, c, hosttest.Policy(hosttest.LeastLoad()).Encode())
	i := instance(t, m)
	now := time.Now()
	word := uint64(1<<20 | uint64(abi.Select) + 1)
	look := func(later time.Duration) { w.check(now.Add(later)) }
	i.running.Store(word)
	look(0)
	look(m.Limit(abi.Select).Wall - 1)
	if i.running.Load() != word {
		t.Error("ended before its time")
	}
	i.running.Store(word + 1<<8) // the next call
	look(time.Second)
	look(time.Second + m.Limit(abi.Select).Wall - 1)
	if i.running.Load() != word+1<<8 || i.kill.Get() != 0 {
		t.Error("the next call was ended for the last one")
	}
	look(time.Second + m.Limit(abi.Select).Wall)
	if byte(i.running.Load()) != killed || i.kill.Get() == 0 {
		t.Error("not ended in time")
	}
	i.running.Store(word &^ 0xff)
	look(time.Hour)
	look(2 * time.Hour)
	if i.running.Load() != word&^0xff {
		t.Error("an idle instance was ended")
	}
}

// TestRefusedModules covers modules that the meter accepts and the host refuses.
func TestRefusedModules(t *testing.T) {
	arena := hosttest.ArenaFunc()
	ok := hosttest.LeastLoad()
	typed := func(f hosttest.Func, params, results []byte) hosttest.Func {
		f.Params, f.Results = params, results
		f.Body = hosttest.Unreachable
		return f
	}
	long := []byte{hosttest.TypeI64}
	for _, c := range []struct {
		name   string
		module hosttest.Module
		config Config
		want   string
	}{
		{"no arena", hosttest.Module{Funcs: []hosttest.Func{ok}, Pages: 1}, Config{}, "does not export cs_arena_v1"},
		{"nothing decided", hosttest.Module{Funcs: []hosttest.Func{arena}, Pages: 1}, Config{}, "exports no policy function"},
		{"another kind", hosttest.Policy(ok), Config{Kinds: []abi.Kind{abi.Refine}}, "does not export cs_refine_v1"},
		{"no such kind", hosttest.Policy(ok), Config{Kinds: []abi.Kind{99}}, "Kinds: 99: unknown kind"},
		{"arena of other types", hosttest.Module{Funcs: []hosttest.Func{typed(arena, long, long), ok}, Pages: 1}, Config{}, "must take an i32"},
		{"function of other types", hosttest.Policy(typed(ok, nil, nil)), Config{}, "must take an i32"},
		{"memory not exported", hosttest.Module{Funcs: []hosttest.Func{arena, ok}, Pages: 1, NoMemoryName: true}, Config{}, "memory"},
		{"import off the list", hosttest.Module{Imports: []hosttest.Import{{Module: "env", Name: "system"}}, Funcs: []hosttest.Func{arena, ok}, Pages: 1}, Config{}, "not on the list of allowed ones"},
		{"file access", hosttest.Module{Imports: []hosttest.Import{{Module: wasi, Name: "path_open"}}, Funcs: []hosttest.Func{arena, ok}, Pages: 1}, Config{}, "such as fmt"},
		{"import of other types", hosttest.Module{Imports: []hosttest.Import{{Module: wasi, Name: "random_get", Params: long}}, Funcs: []hosttest.Func{arena, ok}, Pages: 1}, Config{}, "wrong type"},
		{"too much memory", hosttest.Module{Funcs: []hosttest.Func{arena, ok}, Pages: 129}, Config{}, "memory pages, at most 128"},
		{"no function types", hosttest.Policy(selects(hosttest.I32(0))), Config{}, "compile"},
		{"an initialisation that returns", hosttest.Policy(ok, hosttest.Func{Export: "_initialize", Results: long, Body: hosttest.I64(0)}), Config{}, "_initialize must"},
		{"bad limit", hosttest.Policy(ok), Config{Start: Limit{Fuel: -1}}, "Fuel must"},
	} {
		m, err := Load(context.Background(), c.config, c.module.Encode())
		if err == nil {
			m.Close()
		}
		testkit.WantError(t, err, c.want)
	}
}

// TestBadStarts covers modules that cannot be instantiated.
func TestBadStarts(t *testing.T) {
	start := func(body ...[]byte) hosttest.Module {
		return hosttest.Policy(hosttest.LeastLoad(), hosttest.Func{Export: abi.ExportInit, Body: hosttest.Cat(body...)})
	}
	arena := func(result int64) hosttest.Module {
		return hosttest.Module{Funcs: []hosttest.Func{hosttest.Function(abi.ExportArena, nil, hosttest.I64(result)), hosttest.LeastLoad()}, Pages: 1}
	}
	for _, c := range []struct {
		name   string
		module hosttest.Module
		cause  Cause
	}{
		{"trap", start(hosttest.Unreachable), Trapped},
		{"endless", start(hosttest.Forever), OutOfFuel},
		{"no arena", arena(0), TooLarge},
		{"arena outside", arena(60_000<<32 | 10_000), BadOutput},
		{"arena beyond 2^32", arena(-1 << 32), BadOutput},
		{"arena too small", arena(1024<<32 | 100), BadOutput},
		{"arena at an odd place", arena(1025<<32 | 10_000), BadOutput},
	} {
		m := load(t, Config{}, c.module.Encode())
		i, err := m.Instantiate()
		if i != nil || CauseOf(err) != c.cause {
			t.Errorf("%s: %v, want %v", c.name, err, c.cause)
		}
	}
	// A start section shares the fuel of the start.
	endless := start(hosttest.Forever)
	endless.ExtraSections = []byte{8, 1, 2}
	if _, err := load(t, Config{Start: Limit{Fuel: 5000}}, endless.Encode()).Instantiate(); CauseOf(err) != Trapped {
		t.Errorf("an endless start section: %v", err)
	}
	m := load(t, Config{}, hosttest.Policy(hosttest.LeastLoad()).Encode())
	m.Close()
	if _, err := m.Instantiate(); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed module: %v", err)
	}
}

// TestFramesGrowTheArena checks that a larger frame requests a larger arena, within the
// limits of the kind and the module's memory.
func TestFramesGrowTheArena(t *testing.T) {
	many := func(n int) []policies.Bid { return make([]policies.Bid, n) }
	i := hand(t, hosttest.LeastLoad())
	if _, err := i.Select(abi.Call{}, many(300)); err != nil { // 7,288 bytes
		t.Error(err)
	}
	for range 2 {
		if _, err := i.Select(abi.Call{}, many(400)); CauseOf(err) != TooLarge || i.Dead() != nil {
			t.Errorf("beyond the limit: %v, %v", err, i.Dead())
		}
	}
	var c Config
	c.Limits[abi.Select].Frame = 1 << 20
	c.Limits[abi.Select].Fuel = 1 << 20
	i = instance(t, load(t, c, hosttest.Policy(hosttest.LeastLoad()).Encode()))
	if _, err := i.Select(abi.Call{}, many(2000)); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := i.Select(abi.Call{}, many(10_000)); CauseOf(err) != TooLarge || i.Dead() != nil {
			t.Errorf("beyond the module's room: %v, %v", err, i.Dead())
		}
	}
	if got, err := i.Select(abi.Call{}, sixteen()); err != nil || got != (bidask.LeastLoad{}).Select(sixteen()) {
		t.Error(got, err)
	}
}

func TestClosedInstanceIsDead(t *testing.T) {
	i := hand(t, hosttest.LeastLoad())
	for range 2 {
		testkit.NoError(t, i.Close())
	}
	if _, err := i.Select(abi.Call{}, sixteen()); CauseOf(err) != Dead {
		t.Error(err)
	}
	if err := i.Replay(make([]byte, 100), &Record{}); err == nil {
		t.Error("replayed")
	}
}
