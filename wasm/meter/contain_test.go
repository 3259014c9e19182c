package meter

import (
	"context"
	"runtime"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// count repeats "memory[0]++" without end.
func count() *module {
	return single(nil, nil, nil, loop(i32(0), i32(0), op(0x28, 2, 0), i32(1), op(0x6a), op(0x36, 2, 0), op(0x0c, 0)))
}

// TestRunawayLetsGoCollect checks the purpose of the package: while a guest runs without end,
// other goroutines can stop the world, and can end the call. Without the returns to Go, it
// would hang for ever.
func TestRunawayLetsGoCollect(t *testing.T) {
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())
	defer r.Close(ctx)
	running := make(chan struct{}, 1)
	if _, err := r.NewHostModuleBuilder("cascade_v1").NewFunctionBuilder().
		WithGoFunction(api.GoFunc(func(context.Context, []uint64) { running <- struct{}{} }), nil, nil).Export("log").Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	m := count()
	m.imports = []Import{{"cascade_v1", "log"}}
	m.functions[0].body = append([]*ins{op(0x10, 0)}, m.functions[0].body...)
	m.exports["run"] = 1
	a := engine{r}.metered(t, m.encode(), Config{})
	a.give(MaxFuel)

	done := make(chan error, 1)
	go func() {
		_, err := a.ExportedFunction("run").Call(ctx)
		done <- err
	}()
	<-running
	for range 3 {
		runtime.GC()
	}
	select {
	case err := <-done:
		t.Fatalf("the endless loop ended: %v", err)
	default:
	}
	a.kill.Set(1)
	testkit.WantError(t, <-done, "unreachable")
	if a.left() < 0 {
		t.Errorf("killed, and yet out of fuel: %d", a.left())
	}
	// The flag stays set: the next call ends at its first checkpoint.
	a.give(10 * DefaultSlice)
	go func() {
		_, err := a.ExportedFunction("run").Call(ctx)
		done <- err
	}()
	if err := <-done; err == nil || a.left() < 8*DefaultSlice {
		t.Errorf("call after the kill: %v, %d ticks left", err, a.left())
	}
}

// TestStormsAreContained runs hostile modules that Instrument accepts.
func TestStormsAreContained(t *testing.T) {
	e := newEngine(t)
	forever := func(body ...*ins) *module {
		m := single(nil, nil, nil, loop(append(body, op(0x0c, 0))...))
		m.table, m.tableMax = make([]int64, 1), 1<<31
		m.maxPages = 65_536
		return m
	}
	recursion := single(nil, nil, nil, op(0x10, 0))
	indirect := single(nil, nil, nil, i32(0), op(0x11, 0, 0))
	indirect.table, indirect.tableMax = []int64{0}, 1
	straight := single(nil, nil, nil)
	for range 200_000 {
		straight.functions[0].body = append(straight.functions[0].body, op(0x01))
	}
	for _, c := range []struct {
		name string
		m    *module
		fuel int64
		want string
	}{
		{"memory.grow", forever(i32(1), op(0x40, 0), op(0x1a)), 20_000, "unreachable"},
		{"memory.grow by much", forever(i32(-1), op(0x40, 0), op(0x1a)), 20_000, "unreachable"},
		{"table.grow", forever(op(0xd0), i32(1000), fc(15, 0), op(0x1a)), 20_000, "unreachable"},
		{"memory.fill", forever(i32(0), i32(1), i32(1<<16), fc(11, 0)), 100_000, "unreachable"},
		{"fill outside", forever(i32(0), i32(1), i32(-1), fc(11, 0)), 1 << 40, "out of bounds memory access"},
		{"recursion, little fuel", recursion, 1000, "unreachable"},
		{"recursion", recursion, MaxFuel, "stack overflow"},
		{"indirect recursion", indirect, MaxFuel, "stack overflow"},
		{"straight line", straight, 700, "unreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stack := int64(0)
			if c.want == "stack overflow" { // the engine's own limit
				stack = MaxFuel
			}
			a := e.metered(t, c.m.encode(), Config{Pages: 64, Stack: stack})
			a.give(c.fuel)
			_, err := a.ExportedFunction("run").Call(context.Background())
			testkit.WantError(t, err, c.want)
			if size := a.Memory().Size(); size > 64<<16 {
				t.Errorf("the memory grew to %d bytes", size)
			}
		})
	}
}

func TestStartRunsOnStartFuel(t *testing.T) {
	e := newEngine(t)
	for _, name := range []string{"start", "_initialize"} {
		m := count()
		if name == "start" {
			m.start = 0
		} else {
			m.exports[name] = 0
		}
		out, report, err := Instrument(m.encode(), Config{StartFuel: 5000})
		testkit.NoError(t, err)
		if report.Start != (name == "start") {
			t.Errorf("%s: the report says start %v", name, report.Start)
		}
		_, err = e.instance(out)
		testkit.WantError(t, err, "unreachable")
	}
}

func TestTracesKeepNames(t *testing.T) {
	m := count()
	m.names = true
	a := newEngine(t).metered(t, m.encode(), Config{})
	a.give(10)
	_, err := a.ExportedFunction("run").Call(context.Background())
	for _, name := range []string{checkpointName, ".fa("} {
		testkit.WantError(t, err, name)
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct{ total, slice, fuel, budget int64 }{
		{0, 5, 0, 0}, {4, 5, 4, 0}, {5, 5, 5, 0}, {12, 5, 5, 7}, {-3, 5, 0, 0}, {1 << 62, 5, 5, MaxFuel - 5},
	} {
		fuel, budget := Split(c.total, c.slice)
		if int64(fuel) != c.fuel || int64(budget) != c.budget {
			t.Errorf("Split(%d, %d) = %d, %d", c.total, c.slice, fuel, budget)
		}
	}
}
