package meter

import (
	"context"
	"crypto/sha256"
	"path/filepath"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// goGuest builds testdata/guest.
func goGuest(t testing.TB) []byte {
	t.Helper()
	return hosttest.Build(t, filepath.Join("testdata", "guest"))
}

// goEngine returns an engine for Go guests.
func goEngine(t testing.TB) engine {
	e := newEngine(t)
	wasi_snapshot_preview1.MustInstantiate(context.Background(), e.r)
	return e
}

// goInstance instantiates a compiled Go guest with a clock that advances by 1 µs per reading. It
// is the same in every run, and the guest's garbage collector needs a clock that advances.
func goInstance(t testing.TB, e engine, compiled wazero.CompiledModule) api.Module {
	t.Helper()
	now := int64(0)
	mod, err := e.r.InstantiateModule(context.Background(), compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions("_initialize").
		WithNanotime(func() int64 { now += 1000; return now }, 1))
	testkit.NoError(t, err)
	return mod
}

func compile(t testing.TB, e engine, code []byte) wazero.CompiledModule {
	t.Helper()
	return testkit.Must(e.r.CompileModule(context.Background(), code))
}

var guestCalls = []struct {
	name string
	args []uint64
}{
	{"choose", []uint64{16}}, {"divide", []uint64{8, 60}}, {"churn", []uint64{3000}}, {"recurse", []uint64{15}},
	{"churn", []uint64{9000}}, {"divide", []uint64{3, 200}}, {"choose", []uint64{64}},
}

// TestGoGuestIsUnchanged makes the same calls in the original and in the instrumented guest, and
// checks that results and the whole memory are equal after each, for every slice, and that
// two instances consume the same fuel.
func TestGoGuestIsUnchanged(t *testing.T) {
	ctx := context.Background()
	code := goGuest(t)
	e := goEngine(t)
	out, report, err := Instrument(code, Config{Slice: 5000})
	testkit.NoError(t, err)
	plain := goInstance(t, e, compile(t, e, code))
	compiled := compile(t, e, out)
	a, b := arm(t, goInstance(t, e, compiled), report.Slice), arm(t, goInstance(t, e, compiled), 1)
	t.Logf("initialisation takes %d ticks", DefaultStartFuel-a.left())

	hash := func(m api.Module) [32]byte {
		memory, _ := m.Memory().Read(0, m.Memory().Size())
		return sha256.Sum256(memory)
	}
	const fuel = 1 << 40
	for _, call := range guestCalls {
		want, err := plain.ExportedFunction(call.name).Call(ctx, call.args...)
		testkit.NoError(t, err)
		a.give(fuel)
		b.give(fuel)
		for _, m := range []armed{a, b} {
			got, err := m.ExportedFunction(call.name).Call(ctx, call.args...)
			testkit.NoError(t, err)
			if got[0] != want[0] {
				t.Errorf("%s%v = %d, unmetered %d", call.name, call.args, got[0], want[0])
			}
		}
		if hash(a) != hash(plain) || hash(b) != hash(plain) {
			t.Errorf("%s%v: the memories differ", call.name, call.args)
		}
		if a.left() != b.left() {
			t.Errorf("%s%v: %d and %d ticks left", call.name, call.args, a.left(), b.left())
		}
		t.Logf("%s%v takes %d ticks", call.name, call.args, fuel-a.left())
	}

	// One tick less than a call needs ends it; exactly as many do not. recurse keeps no
	// state, so the calls are equal.
	recurse := a.ExportedFunction("recurse")
	a.give(fuel)
	if _, err := recurse.Call(ctx, 12); err != nil {
		t.Fatal(err)
	}
	need := fuel - a.left()
	a.give(need)
	if _, err := recurse.Call(ctx, 12); err != nil || a.left() != 0 {
		t.Errorf("with exactly enough fuel: %v, %d left", err, a.left())
	}
	a.give(need - 1)
	if _, err := recurse.Call(ctx, 12); err == nil || a.left() >= 0 {
		t.Errorf("with a tick too little: %v, %d left", err, a.left())
	}
}
