package meter

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// engine runs modules in wazero as the host does: compiled, core features 2.
type engine struct{ r wazero.Runtime }

func newEngine(t testing.TB) engine {
	ctx := context.Background()
	e := engine{wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().WithCoreFeatures(api.CoreFeaturesV2))}
	t.Cleanup(func() { e.r.Close(ctx) })
	if _, err := e.r.NewHostModuleBuilder("cascade_v1").NewFunctionBuilder().
		WithGoFunction(api.GoFunc(func(context.Context, []uint64) {}), nil, nil).Export("log").Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	return e
}

// instance instantiates a module.
func (e engine) instance(code []byte) (api.Module, error) {
	return e.r.InstantiateWithConfig(context.Background(), code, wazero.NewModuleConfig().WithName("").WithStartFunctions("_initialize"))
}

// armed is an instance of an instrumented module.
type armed struct {
	api.Module
	slice                     int64
	fuel, budget, kill, stack api.MutableGlobal
}

func arm(t testing.TB, mod api.Module, slice int64) armed {
	t.Helper()
	a := armed{Module: mod, slice: slice}
	for name, g := range map[string]*api.MutableGlobal{FuelExport: &a.fuel, BudgetExport: &a.budget, KillExport: &a.kill, StackExport: &a.stack} {
		var ok bool
		if *g, ok = mod.ExportedGlobal(name).(api.MutableGlobal); !ok {
			t.Fatalf("the module has no mutable global %s", name)
		}
	}
	return a
}

func (a armed) give(total int64) {
	f, b := Split(total, a.slice)
	a.fuel.Set(f)
	a.budget.Set(b)
}

func (a armed) left() int64 { return Left(a.fuel.Get(), a.budget.Get()) }

// stackBytes returns the size of the engine's stack for a function. It reads the engine's own
// struct, whose fields another version may rename.
func stackBytes(t testing.TB, f api.Function) int64 {
	t.Helper()
	stack := reflect.ValueOf(f).Elem().FieldByName("stack")
	if stack.Kind() != reflect.Slice {
		t.Fatal("this version of the engine keeps its stack elsewhere")
	}
	return int64(stack.Len())
}

// metered instruments and instantiates a module.
func (e engine) metered(t testing.TB, code []byte, c Config) armed {
	t.Helper()
	out, report, err := Instrument(code, c)
	testkit.NoError(t, err)
	mod := testkit.Must(e.instance(out))
	return arm(t, mod, report.Slice)
}

// trapOf returns the trap that an error of the engine names; "" for no error.
func trapOf(err error) string {
	if err == nil {
		return ""
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(text, "wasm error: ")
}

const (
	unreachable = "unreachable"
	outOfBounds = "out of bounds memory access"
)
