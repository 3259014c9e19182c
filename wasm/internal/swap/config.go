package swap

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// Defaults of a Config.
const (
	DefaultTick = 100 * time.Millisecond
	DefaultStop = 2 * time.Second
)

// drainEvery is the interval at which the calls in a module that is to be closed are
// counted.
const drainEvery = time.Millisecond

// Candidate is a module that is offered to a slot.
type Candidate struct {
	promotion.Offer
	// Module and Signature are the bytes of the module and of its signature file, and
	// Configuration is passed to the module. The slot does not read them, and drops
	// them once the module is compiled.
	Module, Signature, Configuration []byte
}

// Module is a module that a Loader has compiled.
type Module[P any] struct {
	// Policy answers every call, by the native policy where the module does not, and
	// is safe for concurrent use.
	Policy P
	// Warm makes the module ready to answer without delay, and checks the results and
	// the fuel of its golden vectors. Nil does nothing.
	Warm func(context.Context) error
	// Replay runs on the module the recorded calls that it has not run yet, and
	// returns how it answered. It returns soon when the context is done. An error
	// counts as a fault. It is called from one goroutine. With nil the module stays in
	// shadow.
	Replay func(context.Context) (lifecycle.Figures, error)
	// Compare has the active policy repeat the canary's decisions that were not
	// compared yet, and returns Differ, Worse and Compared. It is called like Replay,
	// and never at the same time as another module's Compare. An error is not counted
	// as a fault. With nil the canary is judged by its faults, and by the figures that
	// Slot.AddFigures gets.
	Compare func(context.Context) (lifecycle.Figures, error)
	// Close frees the module. It is called once, when no call is in progress in it.
	Close func() error
	// Logger is Config.Logger with attributes that name the module. Nil means
	// Config.Logger with kind and generation.
	Logger *slog.Logger
}

// Loader makes modules. Its methods are called from one goroutine, and should
// return soon when the context is done.
type Loader[P any] interface {
	// Verify checks that the candidate was signed and may run here.
	Verify(context.Context, Candidate) error
	// Compile returns the module. It arranges that fault is called, from any
	// goroutine, whenever the native policy had to answer a call of the module.
	Compile(ctx context.Context, c Candidate, fault func()) (Module[P], error)
}

// Config configures a Slot.
type Config[P any] struct {
	// Machine has the slot's kind, gates and fault limits.
	Machine promotion.Config
	// Native decides while no module does. Required.
	Native P
	// Loader makes the modules. Required.
	Loader Loader[P]
	// Tick is the interval at which gates are checked and recorded calls replayed. 0
	// means DefaultTick.
	Tick time.Duration
	// Stop is how long Run waits at its end for calls in progress. 0 means
	// DefaultStop.
	Stop time.Duration
	// Build is held while a module is verified, compiled or warmed. The slots of one
	// process share it, so that most processors are left for calls. Nil means a lock
	// of the slot's own.
	Build sync.Locker
	// Now is the clock of the gates and fault limits. Nil means time.Now.
	Now func() time.Time
	// Changed is called when the status of a module may have changed. It is called
	// under the slot's lock: it must not call the slot, and must not block. It may be
	// nil.
	Changed func()
	// Logger logs switches and modules that ended. Nil discards them.
	Logger *slog.Logger
}

func (c Config[P]) complete() (Config[P], error) {
	if c.Loader == nil {
		return c, errors.New("loader: required")
	}
	if c.Tick < 0 || c.Stop < 0 {
		return c, errors.New("tick and stop must not be negative")
	}
	c.Tick = cmp.Or(c.Tick, DefaultTick)
	c.Stop = cmp.Or(c.Stop, DefaultStop)
	c.Build = cmp.Or[sync.Locker](c.Build, new(sync.Mutex))
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Changed == nil {
		c.Changed = func() {}
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c, nil
}
