package host

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// What modules can make the host keep or write, at most.
const (
	LogLines = 64  // a second, for each module
	LogBytes = 256 // of one line; also of what fail keeps
)

// answer is the host's half of an import. It runs in the middle of a call, on
// the goroutine of the instance.
type answer struct {
	params, results []api.ValueType
	do              func(i *Instance, mod api.Module, stack []uint64)
}

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

// imports is all that a module can import, with the types it must declare.
var imports = map[meter.Import]answer{
	{Module: abi.ImportModule, Name: abi.ImportLog}:  {[]api.ValueType{i32, i32, i32}, nil, logLine},
	{Module: abi.ImportModule, Name: abi.ImportFail}: {[]api.ValueType{i32, i32, i32}, nil, fail},
	{Module: wasi, Name: "args_get"}:                 {[]api.ValueType{i32, i32}, []api.ValueType{i32}, nothing},
	{Module: wasi, Name: "args_sizes_get"}:           {[]api.ValueType{i32, i32}, []api.ValueType{i32}, sizes},
	{Module: wasi, Name: "environ_get"}:              {[]api.ValueType{i32, i32}, []api.ValueType{i32}, nothing},
	{Module: wasi, Name: "environ_sizes_get"}:        {[]api.ValueType{i32, i32}, []api.ValueType{i32}, sizes},
	{Module: wasi, Name: "clock_time_get"}:           {[]api.ValueType{i32, i64, i32}, []api.ValueType{i32}, clock},
	{Module: wasi, Name: "fd_write"}:                 {[]api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, write},
	{Module: wasi, Name: "poll_oneoff"}:              {[]api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, poll},
	{Module: wasi, Name: "proc_exit"}:                {[]api.ValueType{i32}, nil, exit},
	{Module: wasi, Name: "random_get"}:               {[]api.ValueType{i32, i32}, []api.ValueType{i32}, random},
	{Module: wasi, Name: "sched_yield"}:              {nil, []api.ValueType{i32}, nothing},
}

// answerImports adds the host's half to a runtime.
func answerImports(ctx context.Context, r wazero.Runtime) error {
	for _, from := range [...]string{abi.ImportModule, wasi} {
		b := r.NewHostModuleBuilder(from)
		for name, a := range imports {
			if name.Module != from {
				continue
			}
			b = b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
				i := ctx.Value(instanceKey{}).(*Instance)
				i.charge(mod, HostTicks)
				a.do(i, mod, stack)
			}), a.params, a.results).Export(name.Name)
		}
		if _, err := b.Instantiate(ctx); err != nil {
			return err
		}
	}
	return answerOPA(ctx, r)
}

// charge takes ticks from the fuel of the call that is running. The guest's next
// checkpoint ends it if that was too much: the host's own work is bounded before
// it is done, by what a single import may ask for.
func (i *Instance) charge(mod api.Module, ticks int64) {
	fuel := i.fuel
	if fuel == nil { // in the start section
		var ok bool
		if fuel, ok = mod.ExportedGlobal(meter.FuelExport).(api.MutableGlobal); !ok {
			return
		}
	}
	fuel.Set(fuel.Get() - uint64(ticks))
}

// text copies a guest's text, cut at LogBytes; nil when it lies outside.
func text(mod api.Module, at, n uint64) []byte {
	b, ok := mod.Memory().Read(uint32(at), min(uint32(n), LogBytes))
	if !ok {
		return nil
	}
	return append([]byte(nil), b...)
}

// logLine is log(level, ptr, len).
func logLine(i *Instance, mod api.Module, stack []uint64) {
	if i.module.log.room(time.Now()) {
		level := min(max(int32(stack[0]), int32(slog.LevelDebug)), int32(slog.LevelError))
		i.module.log.to.Log(context.Background(), slog.Level(level), "policy says", "text", string(text(mod, stack[1], stack[2])))
	}
}

// fail is fail(code, ptr, len).
func fail(i *Instance, mod api.Module, stack []uint64) {
	i.said = text(mod, stack[1], stack[2])
}

// logbook bounds what a module logs.
type logbook struct {
	to      *slog.Logger
	second  atomic.Int64
	lines   atomic.Int64
	dropped atomic.Uint64
}

// room reports whether a line may be logged now. Lines at the turn of a second
// may be counted for either.
func (l *logbook) room(now time.Time) bool {
	if s := now.Unix(); l.second.Swap(s) != s {
		l.lines.Store(0)
	}
	if l.lines.Add(1) > LogLines {
		l.dropped.Add(1)
		return false
	}
	return true
}
