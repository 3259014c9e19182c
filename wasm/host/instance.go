package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// minArena is the size of the arena that a new instance must have, in bytes.
const minArena = 8 << 10

// startKind is the kind of the calls that start an instance: initialisation and arena.
const startKind = abi.NumKinds

// Instance is an instance of a module, with its own memory. It is not safe for
// concurrent use: it belongs to one goroutine at a time.
type Instance struct {
	module              *Module
	mod                 api.Module
	memory              api.Memory
	fuel, budget, kill  api.MutableGlobal
	depth               api.MutableGlobal // bytes of stack left, never written
	fns                 [abi.NumKinds]api.Function
	arenaFn, deferredFn api.Function
	opa                 *opa.Guest // nil unless OPA compiled the module
	limits              [abi.NumKinds + 1]meteredLimit
	arenaAt, arenaSize  uint32 // of the arena
	refusedSize         int    // of the largest frame that was refused for its size, 0: none
	initialSize         uint32 // memory's size when it was new
	stack               [1]uint64
	ctx                 context.Context
	fuelGiven           int64  // fuel of the last call
	lastBudget          uint64 // its budget
	call                uint64
	dead                error

	// What imports left.
	clock    uint64
	random   uint64
	failText []byte // by fail
	stderr   []byte // on standard error

	record *Record
	_      [64]byte
	// running is written by a Watch, too: on a line of its own.
	running runningCall
	_       [56]byte
}

// meteredLimit is a limit, with the values of the meter's globals.
type meteredLimit struct {
	Limit
	fuel, budget uint64
}

// instanceKey is the context key of a call's instance.
type instanceKey struct{}

// callContext holds the instance of a call. It is never done: the engine only reads
// values from it, some of them its own, before each call.
type callContext struct {
	context.Context
	instance *Instance
}

func (c *callContext) Value(key any) any {
	if _, ok := key.(instanceKey); ok {
		return c.instance
	}
	return nil
}

// startContext is the context in which the engine creates an instance. It also has the
// values that the engine reads then.
type startContext struct{ callContext }

func (c startContext) Value(key any) any {
	if i := c.callContext.Value(key); i != nil {
		return i
	}
	return c.Context.Value(key)
}

// Instantiate creates an instance and runs its initialisation, which takes some 20 µs
// for a small module and milliseconds for one in Go. The error is a *Fault if the module
// caused it.
func (m *Module) Instantiate() (*Instance, error) {
	if m.closed.Load() {
		return nil, ErrClosed
	}
	i := &Instance{module: m, lastBudget: 1} // the module's initial budget
	i.ctx = &callContext{context.Background(), i}
	for k, l := range m.config.Limits {
		i.limits[k].Limit = l
	}
	i.limits[startKind].Limit = m.config.Start
	for k := range i.limits {
		l := &i.limits[k]
		l.fuel, l.budget = meter.Split(l.Fuel, m.report.Slice)
	}
	// start calls the initialisation, so that the watchdog bounds it.
	linear := new(memory)
	ctx := startContext{callContext{experimental.WithMemoryAllocator(context.Background(), linear), i}}
	mod, err := m.program.runtime.InstantiateModule(ctx, m.program.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		linear.Free() // the engine does not free it then
		return nil, &Fault{Kind: abi.Configure, Cause: Trapped, Text: i.lastOutput(), Err: fmt.Errorf("start: %w", err)}
	}
	i.mod, i.memory = mod, mod.ExportedMemory(abi.ExportMemory)
	for name, g := range map[string]*api.MutableGlobal{meter.FuelExport: &i.fuel, meter.BudgetExport: &i.budget, meter.KillExport: &i.kill, meter.StackExport: &i.depth} {
		var ok bool
		if *g, ok = mod.ExportedGlobal(name).(api.MutableGlobal); !ok {
			mod.Close(i.ctx)
			return nil, errors.New("internal error: the module has no meter")
		}
	}
	i.bind()
	m.live.Add(1)
	if m.config.Watchdog != nil {
		m.config.Watchdog.add(i)
	}
	if err := i.start(); err != nil {
		i.Close()
		return nil, err
	}
	i.initialSize = i.memory.Size()
	return i, nil
}

// bind looks up the exported functions.
func (i *Instance) bind() {
	if i.module.opa {
		i.bindOPA()
		return
	}
	for _, k := range i.module.kinds {
		i.fns[k] = i.mod.ExportedFunction(k.Export())
	}
	i.arenaFn = i.mod.ExportedFunction(abi.ExportArena)
	i.deferredFn = i.mod.ExportedFunction(abi.ExportDeferred)
}

// start runs the module's initialisation and gets its arena.
func (i *Instance) start() error {
	if init := i.mod.ExportedFunction(abi.ExportInit); init != nil {
		if _, err := i.invoke(startKind, init, 0); err != nil {
			return err
		}
	}
	return i.askArena(startKind, minArena)
}

// askArena calls the module's arena function for frames of n bytes.
func (i *Instance) askArena(k abi.Kind, n int) error {
	region, err := i.invoke(k, i.arenaFn, uint64(n))
	if err != nil {
		return err
	}
	at, size := abi.UnpackRegion(region)
	if region == 0 {
		i.refusedSize = n
		return i.fault(k, TooLarge, errors.New("the module has no arena for the frame"))
	}
	if _, ok := i.memory.Read(at, size); !ok || at%8 != 0 || uint64(size) < uint64(n) {
		return i.fault(k, BadOutput, errors.New("the arena lies outside the memory, is too small, or not aligned to 8"))
	}
	i.arenaAt, i.arenaSize = at, size
	return nil
}

// RunDeferred runs the module's deferred work, if it exports the function for it
// (Module.HasDeferred): a guest in Go collects its garbage, because a collection in the
// middle of a bid's call takes more fuel than the call has, and kills the instance. It
// takes as long as Start allows, usually a tenth of a millisecond. The owner of the
// instance calls it every thousand calls or so, while no request waits for the instance.
// It counts as a call when instances are compared. The error is a *Fault, after which
// the instance is dead.
func (i *Instance) RunDeferred() error {
	if i.dead != nil {
		return i.dead
	}
	if i.deferredFn == nil {
		return nil
	}
	_, err := i.invoke(startKind, i.deferredFn, 0)
	return err
}

// arena returns the arena. Its address must be looked up for each use, because the
// memory moves when it grows. A dead instance has none, so that encoding fails before a
// function is called.
func (i *Instance) arena() []byte {
	if i.dead != nil {
		return nil
	}
	b, _ := i.memory.Read(i.arenaAt, i.arenaSize)
	return b
}

// invoke calls an exported function with the limits of a kind.
func (i *Instance) invoke(k abi.Kind, f api.Function, arg uint64) (uint64, error) {
	l := &i.limits[k]
	i.fuel.Set(l.fuel)
	if l.budget|i.lastBudget != 0 { // a budget of 0 stays 0
		i.budget.Set(l.budget)
		i.lastBudget = l.budget
	}
	i.fuelGiven = l.Fuel
	if i.failText != nil {
		i.failText = nil
	}
	if len(i.stderr) > 0 { // of an earlier call
		i.stderr = i.stderr[:0]
	}
	i.stack[0] = arg
	i.call += 1 << 8
	word := i.call | uint64(k) + 1
	i.running.Store(word)
	err := f.CallWithStack(i.ctx, i.stack[:])
	if !i.running.CompareAndSwap(word, i.call) {
		if err == nil {
			err = errors.New("the wall limit was reached")
		}
		return 0, i.timeoutFault(k, err)
	}
	if err != nil {
		if meter.Left(i.fuel.Get(), i.budget.Get()) < 0 {
			return 0, i.fault(k, OutOfFuel, err)
		}
		if int64(i.depth.Get()) < 0 {
			err = fmt.Errorf("the call stack exceeded %d bytes: %w", i.module.config.Meter.Stack, err)
		}
		return 0, i.fault(k, Trapped, err)
	}
	return i.stack[0], nil
}

// enlarge gets a larger arena for a frame of n bytes, if the kind's limit allows it.
func (i *Instance) enlarge(k abi.Kind, n int) error {
	switch {
	case i.dead != nil:
		return i.dead
	case n > i.limits[k].Frame || i.refusedSize > 0 && n >= i.refusedSize:
		return i.fault(k, TooLarge, fmt.Errorf("the frame takes %d bytes, at most %d are allowed", n, i.limits[k].Frame))
	case i.fns[k] == nil:
		return i.fault(k, Unknown, nil)
	}
	return i.askArena(k, n)
}

// run calls a kind's function for a frame of n bytes; err is the error of encoding it.
func (i *Instance) run(k abi.Kind, n int, err error) (uint64, error) {
	r := i.record
	i.record = nil
	if i.dead != nil || i.fns[k] == nil || err != nil || n > i.limits[k].Frame {
		err := i.notSentFault(k, n, err)
		if r != nil {
			r.begin(i.module, k, nil)
			r.Cause = CauseOf(err)
		}
		return 0, err
	}
	if r == nil {
		return i.invoke(k, i.fns[k], uint64(n))
	}
	r.begin(i.module, k, i.arena()[:n])
	result, err := i.invoke(k, i.fns[k], uint64(n))
	r.end(i, result, err)
	return result, err
}

// wallLimit returns the wall limit of the call whose kind is in the lowest byte of
// running.
func (i *Instance) wallLimit(b byte) time.Duration { return i.limits[b-1].Wall }

// Dead returns the reason why the instance is dead, nil while it is usable.
func (i *Instance) Dead() error { return i.dead }

// Fuel returns the fuel that the last call consumed, in ticks; for a call that ran out
// of fuel, more than its limit.
func (i *Instance) Fuel() int64 { return i.fuelGiven - meter.Left(i.fuel.Get(), i.budget.Get()) }

// Calls returns the number of calls that began, initialisation included. It is safe for
// concurrent use.
func (i *Instance) Calls() uint64 { return i.running.Load() >> 8 }

// Memory returns the memory's size now, and its size when the instance was new, in
// bytes.
func (i *Instance) Memory() (now, first uint32) { return i.memory.Size(), i.initialSize }

// Hash returns a digest of the whole memory, for the comparison of runs. After Close it
// is the digest of nothing.
func (i *Instance) Hash() [sha256.Size]byte {
	if i.mod == nil {
		return sha256.Sum256(nil)
	}
	b, _ := i.memory.Read(0, i.memory.Size())
	return sha256.Sum256(b)
}

// Close frees the instance. It must not be in a call.
func (i *Instance) Close() error {
	if i.mod == nil {
		return nil
	}
	if i.module.config.Watchdog != nil {
		i.module.config.Watchdog.remove(i)
	}
	err := i.mod.Close(context.Background())
	i.mod = nil
	i.dead = &Fault{Kind: abi.Configure, Cause: Dead, Err: errors.New("the instance is closed")}
	i.module.live.Add(-1)
	return err
}
