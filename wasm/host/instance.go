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
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// leastArena is the room for frames that a new instance is asked for, in bytes.
const leastArena = 8 << 10

// starting is the kind of the calls before the first: initialisation, arena.
const starting = abi.Kinds

// Instance is one run of a module, with a memory of its own. It is not safe for
// concurrent use: who calls it owns it meanwhile.
type Instance struct {
	module             *Module
	mod                api.Module
	memory             api.Memory
	fuel, budget, kill api.MutableGlobal
	depth              api.MutableGlobal // bytes of stack left, never written
	fns                [abi.Kinds]api.Function
	arenaFn, restFn    api.Function
	limits             [abi.Kinds + 1]armed
	at, size           uint32 // of the arena
	room               int    // of the largest frame that was refused for its size, 0: none
	first              uint32 // memory's size when it was new
	stack              [1]uint64
	ctx                context.Context
	given              int64  // fuel of the last call
	budgeted           uint64 // its budget
	call               uint64
	dead               error

	// What imports left.
	clock  uint64
	random uint64
	said   []byte // by fail
	words  []byte // on standard error

	record *Record
	_      [64]byte
	// running is written by a Watch, too: on a line of its own.
	running running
	_       [56]byte
}

// armed is a limit as it is written into the globals.
type armed struct {
	Limit
	fuel, budget uint64
}

// instanceKey finds the instance in a call's context.
type instanceKey struct{}

// callContext leads from a call to its instance. It never ends: the engine asks
// it for nothing but values, some of its own, before each call.
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

// startContext is that of the engine when it makes an instance: with the values
// that it asks for then.
type startContext struct{ callContext }

func (c startContext) Value(key any) any {
	if i := c.callContext.Value(key); i != nil {
		return i
	}
	return c.Context.Value(key)
}

// Instantiate makes an instance and runs its initialisation: some 20 µs for a
// small module, milliseconds for one in Go. The error is a *Fault when the
// module is to blame.
func (m *Module) Instantiate() (*Instance, error) {
	if m.closed.Load() {
		return nil, ErrClosed
	}
	i := &Instance{module: m, budgeted: 1} // the module has its own to begin with
	i.ctx = &callContext{context.Background(), i}
	for k, l := range m.config.Limits {
		i.limits[k].Limit = l
	}
	i.limits[starting].Limit = m.config.Start
	for k := range i.limits {
		l := &i.limits[k]
		l.fuel, l.budget = meter.Split(l.Fuel, m.report.Slice)
	}
	// The initialisation is called below, under the watch.
	linear := &memory{from: &m.config.Engine.memories}
	ctx := startContext{callContext{experimental.WithMemoryAllocator(context.Background(), linear), i}}
	mod, err := m.program.runtime.InstantiateModule(ctx, m.program.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		linear.Free() // which nobody else does then
		return nil, &Fault{Kind: abi.Configure, Cause: Trapped, Text: i.last(), Err: fmt.Errorf("start: %w", err)}
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
	if m.config.Watch != nil {
		m.config.Watch.add(i)
	}
	if err := i.start(); err != nil {
		i.Close()
		return nil, err
	}
	i.first = i.memory.Size()
	return i, nil
}

// bind finds the functions to call.
func (i *Instance) bind() {
	if i.module.opa {
		i.bindOPA()
		return
	}
	for _, k := range i.module.kinds {
		i.fns[k] = i.mod.ExportedFunction(k.Export())
	}
	i.arenaFn = i.mod.ExportedFunction(abi.ExportArena)
	i.restFn = i.mod.ExportedFunction(abi.ExportRest)
}

// start initialises the module and asks for its arena.
func (i *Instance) start() error {
	if init := i.mod.ExportedFunction(abi.ExportInit); init != nil {
		if _, err := i.invoke(starting, init, 0); err != nil {
			return err
		}
	}
	return i.askArena(starting, leastArena)
}

// askArena asks for room for frames of n bytes.
func (i *Instance) askArena(k abi.Kind, n int) error {
	region, err := i.invoke(k, i.arenaFn, uint64(n))
	if err != nil {
		return err
	}
	at, size := abi.UnpackRegion(region)
	if region == 0 {
		i.room = n
		return i.fault(k, TooLarge, errors.New("the module has no room for the frame"))
	}
	if _, ok := i.memory.Read(at, size); !ok || at%8 != 0 || uint64(size) < uint64(n) {
		return i.fault(k, BadOutput, errors.New("the arena lies outside the memory, is too small, or not aligned to 8"))
	}
	i.at, i.size = at, size
	return nil
}

// Rest has the module do what it put off, if it has such a thing (Module.Rests): a
// guest in Go collects its garbage, which in the middle of a call for a bid takes
// more fuel than that has, so that the instance dies. It takes as long as Start
// allows, usually a tenth of a millisecond; who owns the instance calls it between
// calls that nobody waits for, every thousand or so. It counts as a call where
// instances are compared. The error is a *Fault, after which the instance is dead.
func (i *Instance) Rest() error {
	if i.dead != nil {
		return i.dead
	}
	if i.restFn == nil {
		return nil
	}
	_, err := i.invoke(starting, i.restFn, 0)
	return err
}

// arena is looked up for each use: the memory moves when it grows. A dead
// instance has none, so that encoding fails before anything is called.
func (i *Instance) arena() []byte {
	if i.dead != nil {
		return nil
	}
	b, _ := i.memory.Read(i.at, i.size)
	return b
}

// invoke calls a function with the fuel of a kind.
func (i *Instance) invoke(k abi.Kind, f api.Function, arg uint64) (uint64, error) {
	l := &i.limits[k]
	i.fuel.Set(l.fuel)
	if l.budget|i.budgeted != 0 { // a budget of 0 stays 0
		i.budget.Set(l.budget)
		i.budgeted = l.budget
	}
	i.given = l.Fuel
	if i.said != nil {
		i.said = nil
	}
	i.stack[0] = arg
	i.call += 1 << 8
	word := i.call | uint64(k) + 1
	i.running.Store(word)
	err := f.CallWithStack(i.ctx, i.stack[:])
	if !i.running.CompareAndSwap(word, i.call) {
		if err == nil {
			err = errors.New("its time was up")
		}
		return 0, i.late(k, err)
	}
	if err != nil {
		if meter.Left(i.fuel.Get(), i.budget.Get()) < 0 {
			return 0, i.fault(k, OutOfFuel, err)
		}
		if int64(i.depth.Get()) < 0 {
			err = fmt.Errorf("its calls nest deeper than %d bytes of stack: %w", i.module.config.Meter.Stack, err)
		}
		return 0, i.fault(k, Trapped, err)
	}
	return i.stack[0], nil
}

// enlarge makes room for a frame of n bytes, if the kind may have one.
func (i *Instance) enlarge(k abi.Kind, n int) error {
	switch {
	case i.dead != nil:
		return i.dead
	case n > i.limits[k].Frame || i.room > 0 && n >= i.room:
		return i.fault(k, TooLarge, fmt.Errorf("the frame takes %d bytes, at most %d are allowed", n, i.limits[k].Frame))
	case i.fns[k] == nil:
		return i.fault(k, Unknown, nil)
	}
	return i.askArena(k, n)
}

// run calls a kind's function on a frame of n bytes that was encoded with err.
func (i *Instance) run(k abi.Kind, n int, err error) (uint64, error) {
	r := i.record
	i.record = nil
	if i.dead != nil || i.fns[k] == nil || err != nil || n > i.limits[k].Frame {
		err := i.unsent(k, n, err)
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

// unsent says why a call is not made at all.
func (i *Instance) unsent(k abi.Kind, n int, err error) error {
	switch {
	case i.dead != nil:
		return i.dead
	case i.fns[k] == nil:
		return i.fault(k, Unknown, nil)
	case CauseOf(err) != 0: // in making room
		return err
	case err == nil:
		err = fmt.Errorf("the frame takes %d bytes, at most %d are allowed", n, i.limits[k].Frame)
	}
	return i.fault(k, TooLarge, err)
}

// judge turns what package abi says of an answer into an error of this package.
func (i *Instance) judge(k abi.Kind, err error) error {
	if err == nil {
		return nil
	}
	if s, ok := err.(abi.Status); ok && s <= abi.Failed {
		return i.fault(k, Refused, err)
	}
	return i.fault(k, BadOutput, err)
}

// fault makes an error, and the instance dead if that is what it means.
func (i *Instance) fault(k abi.Kind, c Cause, err error) error {
	if k == starting {
		k = abi.Configure
	}
	f := &Fault{Kind: k, Cause: c, Text: i.last(), Err: err}
	if c.Fatal() && i.dead == nil {
		i.dead = &Fault{Kind: k, Cause: Dead, Err: err}
	}
	return f
}

// last is what the module said of its end.
func (i *Instance) last() string {
	if len(i.said) > 0 {
		return string(i.said)
	}
	return string(i.words)
}

// wall is the limit of what the lowest byte of running says is called.
func (i *Instance) wall(b byte) time.Duration { return i.limits[b-1].Wall }

// Dead returns why the instance answers no more, nil while it does.
func (i *Instance) Dead() error { return i.dead }

// Fuel is what the last call burnt, in ticks; for one that ran out, what it
// was given and the debt that it could not pay.
func (i *Instance) Fuel() int64 { return i.given - meter.Left(i.fuel.Get(), i.budget.Get()) }

// Calls is how many calls began, those for initialisation included. It is safe
// for concurrent use.
func (i *Instance) Calls() uint64 { return i.running.Load() >> 8 }

// Memory is the memory's present size, and what it was when the instance was
// new, in bytes.
func (i *Instance) Memory() (now, first uint32) { return i.memory.Size(), i.first }

// Hash is of the whole memory, to compare runs; of nothing once it is closed.
func (i *Instance) Hash() [sha256.Size]byte {
	if i.mod == nil {
		return sha256.Sum256(nil)
	}
	b, _ := i.memory.Read(0, i.memory.Size())
	return sha256.Sum256(b)
}

// Close frees the instance; it answers no more. It must not be in a call.
func (i *Instance) Close() error {
	if i.mod == nil {
		return nil
	}
	if i.module.config.Watch != nil {
		i.module.config.Watch.remove(i)
	}
	err := i.mod.Close(context.Background())
	i.mod = nil
	i.dead = &Fault{Kind: abi.Configure, Cause: Dead, Err: errors.New("the instance is closed")}
	i.module.live.Add(-1)
	return err
}
