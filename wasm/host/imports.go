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

// Bounds of what modules can make the host log and keep.
const (
	LogLines = 64  // lines per second and module
	LogBytes = 256 // bytes of one line, and of the text that fail keeps
)

// hostFunction implements an import. It runs during a call, on the goroutine that owns
// the instance.
type hostFunction struct {
	params, results []api.ValueType
	call            func(i *Instance, mod api.Module, stack []uint64)
}

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

// imports lists the functions that a module can import, with their types.
var imports = map[meter.Import]hostFunction{
	{Module: abi.ImportModule, Name: abi.ImportLog}:  {[]api.ValueType{i32, i32, i32}, nil, logLine},
	{Module: abi.ImportModule, Name: abi.ImportFail}: {[]api.ValueType{i32, i32, i32}, nil, fail},
	{Module: wasi, Name: "args_get"}:                 wasiFunction(succeed, i32, i32),
	{Module: wasi, Name: "args_sizes_get"}:           wasiFunction(emptySizes, i32, i32),
	{Module: wasi, Name: "environ_get"}:              wasiFunction(succeed, i32, i32),
	{Module: wasi, Name: "environ_sizes_get"}:        wasiFunction(emptySizes, i32, i32),
	{Module: wasi, Name: "clock_time_get"}:           wasiFunction(readClock, i32, i64, i32),
	{Module: wasi, Name: "fd_write"}:                 wasiFunction(writeOutput, i32, i32, i32, i32),
	{Module: wasi, Name: "poll_oneoff"}:              wasiFunction(pollTimers, i32, i32, i32, i32),
	{Module: wasi, Name: "proc_exit"}:                {[]api.ValueType{i32}, nil, exitCall},
	{Module: wasi, Name: "random_get"}:               wasiFunction(readRandom, i32, i32),
	{Module: wasi, Name: "sched_yield"}:              wasiFunction(succeed),
}

// wasiFunction returns a function of WASI, whose result is an error number.
func wasiFunction(f func(i *Instance, mod api.Module, stack []uint64) (errno uint64), params ...api.ValueType) hostFunction {
	return hostFunction{params, []api.ValueType{i32}, func(i *Instance, mod api.Module, stack []uint64) { stack[0] = f(i, mod, stack) }}
}

// addImports adds the implementations of all imports to a runtime.
func addImports(ctx context.Context, r wazero.Runtime) error {
	for _, from := range [...]string{abi.ImportModule, wasi} {
		b := r.NewHostModuleBuilder(from)
		for name, a := range imports {
			if name.Module != from {
				continue
			}
			b = b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
				i := ctx.Value(instanceKey{}).(*Instance)
				i.charge(mod, HostTicks)
				a.call(i, mod, stack)
			}), a.params, a.results).Export(name.Name)
		}
		if _, err := b.Instantiate(ctx); err != nil {
			return err
		}
	}
	return addOPAImports(ctx, r)
}

// charge takes ticks from the fuel of the running call. If no fuel is left, the guest's
// next checkpoint ends the call. The host's work for a single import is bounded by the
// limits of the import itself.
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

// text returns a copy of a text in the guest's memory, truncated to LogBytes; nil if it
// lies outside the memory.
func text(mod api.Module, at, n uint64) []byte {
	b, ok := mod.Memory().Read(uint32(at), min(uint32(n), LogBytes))
	if !ok {
		return nil
	}
	return append([]byte(nil), b...)
}

// levels are the levels of log lines, by the numbers of the protocol.
var levels = [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}

// logLine implements log(level, ptr, len). A level above the last one counts as the last.
func logLine(i *Instance, mod api.Module, stack []uint64) {
	if i.module.log.allow(time.Now()) {
		level := levels[min(uint32(stack[0]), uint32(len(levels)-1))]
		i.module.log.logger.Log(context.Background(), level, "policy module logged", "text", string(text(mod, stack[1], stack[2])))
	}
}

// fail implements fail(code, ptr, len).
func fail(i *Instance, mod api.Module, stack []uint64) {
	i.failText = text(mod, stack[1], stack[2])
}

// logLimiter bounds the lines that a module logs.
type logLimiter struct {
	logger *slog.Logger
	second atomic.Int64
	lines  atomic.Int64
}

// allow reports whether a line may be logged now. A line close to the turn of a second
// may count for either second.
func (l *logLimiter) allow(now time.Time) bool {
	if s := now.Unix(); l.second.Swap(s) != s {
		l.lines.Store(0)
	}
	return l.lines.Add(1) <= LogLines
}
