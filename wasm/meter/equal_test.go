package meter

import (
	"bytes"
	"context"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/tetratelabs/wazero/api"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// check runs a generated module with some fuel: with payments inserted naively, instrumented, and, if it ends by itself,
// unchanged. Results, traps, memory and fuel must be equal.
func check(t *testing.T, e engine, m *module, fuel, slice int64, args [2]uint64) (cut bool) {
	t.Helper()
	code := m.encode()
	out, report, err := Instrument(code, Config{Slice: slice, StartFuel: 1, Stack: MaxFuel})
	if err != nil {
		t.Fatalf("a valid module is refused: %v\n%s", err, dump(code))
	}
	ctx := context.Background()
	run := func(mod api.Module) (result []uint64, trap string, memory []byte) {
		result, err := mod.ExportedFunction("run").Call(ctx, args[0], args[1])
		memory, _ = mod.Memory().Read(0, mod.Memory().Size())
		return result, trapOf(err), memory
	}
	reference := testkit.Must(e.instance(m.naive(fuel).encode()))
	defer reference.Close(ctx)
	want, trap, memory := run(reference)
	left := int64(reference.ExportedGlobal("fuel").Get())
	compare := func(name string, mod api.Module) {
		switch got, gotTrap, gotMemory := run(mod); {
		case gotTrap != trap:
			t.Fatalf("%s: trap %q, the reference says %q\n%s", name, gotTrap, trap, dump(code))
		case trap == "" && got[0] != want[0]:
			t.Fatalf("%s: result %#x, the reference says %#x\n%s", name, got[0], want[0], dump(code))
		case !bytes.Equal(gotMemory, memory):
			t.Fatalf("%s: memory differs from the reference's\n%s", name, dump(code))
		}
	}
	mod, err := e.instance(out)
	if err != nil {
		t.Fatalf("the rewritten module is invalid: %v\n%s", err, dump(code))
	}
	defer mod.Close(ctx)
	a := arm(t, mod, report.Slice)
	a.give(fuel)
	compare("metered", mod)
	if a.left() != left {
		t.Fatalf("metered: %d ticks left, the reference has %d (trap %q)\n%s", a.left(), left, trap, dump(code))
	}
	if trap == "" && a.stack.Get() != MaxFuel {
		t.Fatalf("the stack is not given back: %d bytes are missing\n%s", MaxFuel-a.stack.Get(), dump(code))
	}
	if left < 0 {
		return true
	}
	plain := testkit.Must(e.instance(code))
	defer plain.Close(ctx)
	compare("unmetered", plain)
	return false
}

// shallow runs a generated module with little stack: it must end if it nests too deeply, and
// the engine's stack must be bounded for all code.
func shallow(t *testing.T, e engine, m *module, fuel int64, args [2]uint64) {
	t.Helper()
	const stack = 20 << 10
	code := m.encode()
	out, report, err := Instrument(code, Config{StartFuel: 1, Stack: stack})
	if err != nil { // the frame of one function exceeds it
		return
	}
	mod := testkit.Must(e.instance(out))
	defer mod.Close(context.Background())
	a := arm(t, mod, report.Slice)
	a.give(fuel)
	f := mod.ExportedFunction("run")
	_, err = f.Call(context.Background(), args[0], args[1])
	if got := stackBytes(t, f); got > mostStack(stack) {
		t.Fatalf("the engine's stack has %d bytes, more than %d, for %d that were allowed\n%s", got, mostStack(stack), stack, dump(code))
	}
	if err == nil && a.stack.Get() != stack {
		t.Fatalf("the stack is not given back: %d bytes are left\n%s", a.stack.Get(), dump(code))
	}
	if int64(a.stack.Get()) < 0 && trapOf(err) != unreachable {
		t.Fatalf("nested too deeply, and yet: %v\n%s", err, dump(code))
	}
}

// mostStack returns the largest possible size of the engine's stack. The stack grows before a
// function is entered, even if the function's charge then ends the call: to twice its size,
// plus what the function needs.
func mostStack(stack int64) int64 { return 3 * (stack + 2*leafFrame) }

// dump formats a module that is small enough to read.
func dump(code []byte) string {
	if len(code) > 2000 {
		return ""
	}
	return hex.EncodeToString(code)
}

// entropy returns a reproducible string of bytes for the generator.
func entropy(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 6))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestRandomModulesAgreeWithTheReference(t *testing.T) {
	n := uint64(600)
	if testkit.RaceEnabled || testing.Short() {
		n = 60
	}
	e := newEngine(t)
	cut, loops := 0, 0
	for seed := range n {
		m := generate(entropy(seed, 1500))
		fuel := int64(seed*37%3000) + 1
		slice := []int64{1, 7, 100, 10_000}[seed%4]
		if check(t, e, m, fuel, slice, [2]uint64{seed, seed << 20}) {
			cut++
		}
		if seed%4 == 0 {
			shallow(t, e, m, fuel, [2]uint64{seed, seed << 20})
		}
		_, report, _ := Instrument(m.encode(), Config{})
		loops += report.Loops
	}
	t.Logf("%d modules, %d loops, %d calls cut", n, loops, cut)
	if cut < int(n)/20 || cut > int(n)*9/10 || loops < int(n)/4 {
		t.Errorf("the generator has lost its mix: %d of %d calls cut, %d loops", cut, n, loops)
	}
}

func FuzzRandomModules(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(entropy(seed, 600), uint16(1000), uint16(50))
	}
	f.Fuzz(func(t *testing.T, in []byte, fuel, slice uint16) {
		// A new engine for each input, because compiled code is freed only with the engine.
		e, m := newEngine(t), generate(in)
		check(t, e, m, int64(fuel), int64(slice)+1, [2]uint64{3, 5})
		shallow(t, e, m, int64(fuel), [2]uint64{3, 5})
	})
}
