package host

import (
	"strings"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Cause says what went wrong with a call.
type Cause uint8

// The causes. After Refused, TooLarge and Unknown the instance lives on; after
// the others it is dead.
const (
	Trapped   Cause = iota + 1 // the module trapped: unreachable, out of bounds, a Go panic
	OutOfFuel                  // it ran to the end of its fuel
	TimedOut                   // a Watch ended it
	BadOutput                  // its answer broke a rule
	Refused                    // it said that it cannot decide
	TooLarge                   // the words exceed the kind's frame, or what the module has room for
	Unknown                    // the module does not decide this kind
	Dead                       // the instance died at an earlier call, or was closed
)

// Causes is one more than the last Cause, for arrays of counters.
const Causes = int(Dead) + 1

var causes = [Causes]string{"", "trapped", "out of fuel", "timed out", "bad output", "refused", "too large", "unknown kind", "dead"}

// String names the cause, for tables and metrics.
func (c Cause) String() string {
	if int(c) < len(causes) {
		return causes[c]
	}
	return "unknown cause"
}

// Fatal reports whether an instance is dead after a fault of that cause. 0, which
// is none, is not fatal.
func (c Cause) Fatal() bool {
	switch c {
	case 0, Refused, TooLarge, Unknown:
		return false
	}
	return true
}

// Fault is the error of every call that got no answer.
type Fault struct {
	Kind  abi.Kind
	Cause Cause
	// Text is what the module last said of it: by fail, or on its standard error.
	// It may hold any bytes and lines; quote it before it is shown.
	Text string
	// Starved, with TimedOut, says that the machine did not run the call: it had
	// burnt too little for a module that is slow.
	Starved bool
	// Err is what the engine or package abi says; for a trap, with the stack.
	Err error
}

// Error is one line: kind, cause, and the first line of what is known.
func (f *Fault) Error() string {
	text := f.Kind.String() + ": " + f.Cause.String()
	if f.Starved {
		text += ", of which the machine ran it too little"
	}
	if f.Err != nil {
		line, _, _ := strings.Cut(f.Err.Error(), "\n")
		text += ": " + strings.TrimSuffix(line, " (recovered by wazero)")
	}
	return text
}

// Unwrap returns Err.
func (f *Fault) Unwrap() error { return f.Err }

// CauseOf returns the cause of an error of this package, 0 for any other.
func CauseOf(err error) Cause {
	if f, ok := err.(*Fault); ok {
		return f.Cause
	}
	return 0
}
