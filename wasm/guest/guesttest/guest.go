package guesttest

import (
	"context"
	"sync"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// fuel is what a call may use: no policy of ours needs a hundredth of it.
const fuel = 1 << 40

// Guest is an instance of a module. It belongs to one goroutine.
type Guest struct {
	t            testing.TB
	mod          api.Module
	at, size     uint32
	fuel, budget api.MutableGlobal
	fns          [abi.Kinds]api.Function
	arena        api.Function
	slice        int64
	stack        [1]uint64
	used         int64
	// Said is what the module told by log and fail.
	Said []string
}

// compiled holds machine code for all tests of a binary: a module is compiled
// once, however many instances they have of it.
var compiled = sync.OnceValue(wazero.NewCompilationCache)

// New meters a module and makes an instance of it, which ends with the test.
func New(t testing.TB, code []byte) *Guest {
	t.Helper()
	SkipUnderRace(t)
	ctx := context.Background()
	code, report, err := meter.Instrument(code, meter.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().WithCompilationCache(compiled()).WithCoreFeatures(api.CoreFeaturesV2))
	t.Cleanup(func() { r.Close(ctx) })
	wasi_snapshot_preview1.MustInstantiate(ctx, r)
	g := &Guest{t: t, slice: report.Slice}
	say := api.GoModuleFunc(func(_ context.Context, m api.Module, stack []uint64) {
		text, _ := m.Memory().Read(uint32(stack[1]), uint32(stack[2]))
		g.Said = append(g.Said, string(text))
	})
	three := []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}
	if _, err := r.NewHostModuleBuilder(abi.ImportModule).
		NewFunctionBuilder().WithGoModuleFunction(say, three, nil).Export(abi.ImportLog).
		NewFunctionBuilder().WithGoModuleFunction(say, three, nil).Export(abi.ImportFail).Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	if g.mod, err = r.InstantiateWithConfig(ctx, code, wazero.NewModuleConfig().WithStartFunctions(abi.ExportInit).
		WithNanotime(func() int64 { now += 1000; return now }, 1)); err != nil {
		t.Fatal(err)
	}
	g.fuel = g.mod.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)
	g.budget = g.mod.ExportedGlobal(meter.BudgetExport).(api.MutableGlobal)
	for k := range abi.Kinds {
		g.fns[k] = g.mod.ExportedFunction(k.Export())
	}
	if g.arena = g.mod.ExportedFunction(abi.ExportArena); g.arena == nil {
		t.Fatalf("the module does not export %s", abi.ExportArena)
	}
	g.Grow(1)
	return g
}

// SkipUnderRace skips tests of modules under the race detector: compiling one
// takes it ten times as long, and modules run on one goroutine.
func SkipUnderRace(t testing.TB) {
	t.Helper()
	if race {
		t.Skip("modules are tested without the race detector (go test ./wasm/... ./examples/...)")
	}
}

// Has reports whether the module decides a kind.
func (g *Guest) Has(k abi.Kind) bool { return g.fns[k] != nil }

// Grow asks the module for a region of least bytes.
func (g *Guest) Grow(least int) {
	g.t.Helper()
	g.arm(fuel)
	region, err := g.arena.Call(context.Background(), uint64(least))
	if err != nil {
		g.t.Fatal(err)
	}
	if g.at, g.size = abi.UnpackRegion(region[0]); int(g.size) < least || g.at%8 != 0 {
		g.t.Fatalf("the region is %d bytes at %#x, asked for %d", g.size, g.at, least)
	}
}

// Arena is the region now: a call may move the memory.
func (g *Guest) Arena() []byte {
	b, ok := g.mod.Memory().Read(g.at, g.size)
	if !ok {
		g.t.Fatalf("the region, %d bytes at %#x, is not in the memory", g.size, g.at)
	}
	return b
}

func (g *Guest) arm(total int64) {
	f, b := meter.Split(total, g.slice)
	g.fuel.Set(f)
	g.budget.Set(b)
}

// Put encodes words by put, into a larger region if they need one.
func (g *Guest) Put(put func(arena []byte) (int, error)) int {
	g.t.Helper()
	n, err := put(g.Arena())
	if err == abi.ErrShort {
		g.Grow(n)
		n, err = put(g.Arena())
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

// Call has the frame of n bytes decided. An error is a trap.
func (g *Guest) Call(k abi.Kind, n int) (uint64, error) {
	g.arm(fuel)
	g.stack[0] = uint64(n)
	err := g.fns[k].CallWithStack(context.Background(), g.stack[:])
	g.used = fuel - meter.Left(g.fuel.Get(), g.budget.Get())
	return g.stack[0], err
}

// Used is the fuel of the last call.
func (g *Guest) Used() int64 { return g.used }

// decide is Call for what must not trap.
func (g *Guest) decide(k abi.Kind, put func(arena []byte) (int, error)) uint64 {
	g.t.Helper()
	result, err := g.Call(k, g.Put(put))
	if err != nil {
		g.t.Fatal(err)
	}
	return result
}

// Configure hands a configuration over.
func (g *Guest) Configure(config string) error {
	return abi.TakeConfigure(g.decide(abi.Configure, func(a []byte) (int, error) { return abi.PutConfigure(a, abi.Call{}, []byte(config)) }))
}

// Select is a call of that kind, as those below. Each fails the test on a trap.
func (g *Guest) Select(bids []policies.Bid) (int, error) {
	return abi.TakeSelect(g.decide(abi.Select, func(a []byte) (int, error) { return abi.PutSelect(a, abi.Call{}, bids) }), len(bids))
}

// Quote is a call of that kind.
func (g *Guest) Quote(ask abi.Ask) (policies.Bid, bool, error) {
	result := g.decide(abi.Quote, func(a []byte) (int, error) { return abi.PutQuote(a, abi.Call{}, ask) })
	return abi.TakeQuote(g.Arena(), result)
}

// Excess is a call of the kind outlier.
func (g *Guest) Excess(own, mean policies.Tokens) (policies.Tokens, error) {
	result := g.decide(abi.Outlier, func(a []byte) (int, error) { return abi.PutOutlier(a, abi.Call{}, own, mean) })
	return abi.TakeOutlier(g.Arena(), result, own)
}

// Place is a call of that kind.
func (g *Guest) Place(arrival policies.Arrival) (policies.ReplicaID, error) {
	return abi.TakePlace(g.decide(abi.Place, func(a []byte) (int, error) { return abi.PutPlace(a, abi.Call{}, arrival) }), arrival)
}

// Refine is a call of that kind.
func (g *Guest) Refine(b policies.Border) (policies.Tokens, error) {
	result := g.decide(abi.Refine, func(a []byte) (int, error) { return abi.PutRefine(a, abi.Call{}, b) })
	return abi.TakeRefine(g.Arena(), result, b)
}

// Partition is a call of that kind.
func (g *Guest) Partition(w policies.Workload) (policies.Partition, error) {
	result := g.decide(abi.Partition, func(a []byte) (int, error) { return abi.PutPartition(a, abi.Call{}, w) })
	return abi.TakePartition(g.Arena(), result, w)
}
