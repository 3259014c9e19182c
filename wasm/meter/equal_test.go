package meter

import (
	"bytes"
	"context"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/tetratelabs/wazero/api"
)

// check runs a generated module three ways with some fuel: by the reference,
// rewritten, and, where it ends by itself, as it was. Results, traps, memory,
// globals and fuel must be equal.
func check(t *testing.T, e engine, m *module, fuel, slice int64, args [2]uint64) (cut bool) {
	t.Helper()
	code := m.encode()
	out, report, err := Instrument(code, Config{Slice: slice, StartFuel: 1, Stack: MaxFuel})
	if err != nil {
		t.Fatalf("a valid module is refused: %v\n%s", err, dump(code))
	}
	entry := m.exports["run"]
	ref := newMachine(m, fuel)
	want, trap := ref.call(entry, args[0], args[1])

	ctx := context.Background()
	compare := func(name string, mod api.Module) {
		got, err := mod.ExportedFunction("run").Call(ctx, args[0], args[1])
		if !same(err, trap) {
			t.Fatalf("%s: error %v, the reference says %v\n%s", name, err, trap, dump(code))
		}
		if trap == nil && got[0] != want[0] {
			t.Fatalf("%s: result %#x, the reference says %#x\n%s", name, got[0], want[0], dump(code))
		}
		memory, _ := mod.Memory().Read(0, mod.Memory().Size())
		if !bytes.Equal(memory, ref.memory) {
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
	if a.left() != ref.fuel {
		t.Fatalf("metered: %d ticks left, the reference has %d (trap %v)\n%s", a.left(), ref.fuel, trap, dump(code))
	}
	if trap == nil && a.stack.Get() != MaxFuel {
		t.Fatalf("the stack is not given back: %d bytes are missing\n%s", MaxFuel-a.stack.Get(), dump(code))
	}
	if trap == errFuel {
		return true
	}
	plain, err := e.instance(code)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close(ctx)
	compare("unmetered", plain)
	return false
}

// shallow runs a generated module with little stack: if it nests too deeply it is
// cut, and the engine's stack is bounded, whatever the code.
func shallow(t *testing.T, e engine, m *module, fuel int64, args [2]uint64) {
	t.Helper()
	const stack = 20 << 10
	code := m.encode()
	out, report, err := Instrument(code, Config{StartFuel: 1, Stack: stack})
	if err != nil { // one function has more
		return
	}
	mod, err := e.instance(out)
	if err != nil {
		t.Fatal(err)
	}
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
	if int64(a.stack.Get()) < 0 && !same(err, errUnreachable) {
		t.Fatalf("nested too deeply, and yet: %v\n%s", err, dump(code))
	}
}

// mostStack is the most that the engine's stack can have. It grows before a
// function is entered, which the function's own charge then refuses, to twice
// what it has and what the function needs.
func mostStack(stack int64) int64 { return 3 * (stack + 2*leafFrame) }

// dump prints a module that is small enough to be looked at.
func dump(code []byte) string {
	if len(code) > 2000 {
		return ""
	}
	return hex.EncodeToString(code)
}

// entropy is a repeatable string for the generator.
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
	if raceEnabled || testing.Short() {
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
		// An engine per input, since compiled code is only freed with it.
		e, m := newEngine(t), generate(in)
		check(t, e, m, int64(fuel), int64(slice)+1, [2]uint64{3, 5})
		shallow(t, e, m, int64(fuel), [2]uint64{3, 5})
	})
}
