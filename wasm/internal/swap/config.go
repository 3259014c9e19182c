package swap

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// Defaults of a Config.
const (
	DefaultTick = 100 * time.Millisecond
	DefaultStop = 2 * time.Second
)

// drainEvery is how often the calls in a module that is to be closed are counted.
const drainEvery = time.Millisecond

// Candidate is a module that is offered to a slot.
type Candidate struct {
	promotion.Offer
	// Module and Signature are the bytes of the module and of its signature file;
	// Configuration is what it is to be configured with. The slot does not look
	// into them and drops them once the module is compiled.
	Module, Signature, Configuration []byte
}

// Module is a module that a Loader has compiled.
type Module[P any] struct {
	// Policy answers every call, if need be by the native policy, and is safe for
	// concurrent use.
	Policy P
	// Warm makes the module ready to answer without delay, and checks its golden
	// vectors: results and fuel. Nil when there is nothing to do.
	Warm func(context.Context) error
	// Replay runs recorded calls on the module that it has not run yet, and says
	// how it answered. It returns soon when the context is done. An error is a
	// fault. It is called from one goroutine. Nil means that the module cannot be
	// tried in shadow: it then stays there.
	Replay func(context.Context) (promotion.Figures, error)
	// Compare has what the module decided in canary, and was not compared yet,
	// decided again by the policy in force; Differ, Worse and Compared of the
	// figures count. It is called as Replay is, and never at once with that of
	// another module. An error is nobody's fault. Nil means that the canary is
	// judged by faults, and by what Slot.Judge is told.
	Compare func(context.Context) (promotion.Figures, error)
	// Close frees the module. It is called once, when no call is in it.
	Close func() error
	// Logger is that of Config with what names the module. Nil is that of Config,
	// with kind and generation.
	Logger *slog.Logger
}

// Loader makes modules. Its methods are called from one goroutine, and should
// return soon when the context is done.
type Loader[P any] interface {
	// Verify checks that the candidate is what was signed and may run here.
	Verify(context.Context, Candidate) error
	// Compile returns the module. It arranges that fault is called, from any
	// goroutine, whenever the native policy answered a call because the module
	// did not.
	Compile(ctx context.Context, c Candidate, fault func()) (Module[P], error)
}

// Config sets a Slot up.
type Config[P any] struct {
	// Machine is the slot's kind, its gates and its breaker.
	Machine promotion.Config
	// Native is the policy that decides while no module does. Required.
	Native P
	// Loader makes the modules. Required.
	Loader Loader[P]
	// Tick is how often gates are looked at, and recorded calls replayed. 0 means
	// DefaultTick.
	Tick time.Duration
	// Stop is how long Run waits at its end for calls to return. 0 means
	// DefaultStop.
	Stop time.Duration
	// Build is held while a module is verified, compiled or warmed. Slots of one
	// process share it, so that calls keep most of the machine. Nil is one of the
	// slot's own.
	Build sync.Locker
	// Now is the clock of the gates and of the breaker. Nil means time.Now.
	Now func() time.Time
	// Changed is told when a life in the slot may have changed. It is called under
	// the slot's lock: it must not call the slot, nor block. Nil means nobody is
	// told.
	Changed func()
	// Logger tells of switches and of modules that ended. Nil discards it.
	Logger *slog.Logger
}

func (c Config[P]) complete() (Config[P], error) {
	if c.Loader == nil {
		return c, errors.New("loader: required")
	}
	if c.Tick < 0 || c.Stop < 0 {
		return c, errors.New("tick and stop must not be negative")
	}
	if c.Tick == 0 {
		c.Tick = DefaultTick
	}
	if c.Stop == 0 {
		c.Stop = DefaultStop
	}
	if c.Build == nil {
		c.Build = new(sync.Mutex)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
