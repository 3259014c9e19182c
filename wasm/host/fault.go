package host

import (
	"strings"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Cause is the reason why a call failed.
type Cause uint8

// The causes. After Refused, TooLarge and Unknown the instance stays usable; after the
// others it is dead.
const (
	Trapped   Cause = iota + 1 // the module trapped: unreachable, out of bounds, a Go panic
	OutOfFuel                  // the module consumed all its fuel
	TimedOut                   // a Watchdog ended the call
	BadOutput                  // the answer broke a rule
	Refused                    // the module returned Unsupported, BadFrame, Short or Failed
	TooLarge                   // the arguments exceed the kind's frame limit, or the module's arena
	Unknown                    // the module does not decide this kind
	Dead                       // an earlier call killed the instance, or it was closed
)

// NumCauses is the length of an array that a Cause indexes.
const NumCauses = int(Dead) + 1

var causeNames = [NumCauses]string{"", "trapped", "out of fuel", "timed out", "bad output", "refused", "too large", "unknown kind", "dead"}

// String returns the cause's name, for tables and metrics.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return "unknown cause"
}

// Fatal reports whether an instance is dead after a fault with that cause. The zero
// Cause is not fatal.
func (c Cause) Fatal() bool {
	switch c {
	case 0, Refused, TooLarge, Unknown:
		return false
	}
	return true
}

// Fault is the error of a call that returned no valid answer.
type Fault struct {
	Kind  abi.Kind
	Cause Cause
	// Text is the module's last message: from fail, or on its standard error. It may
	// hold any bytes and lines: quote it before you show it.
	Text string
	// Starved, with TimedOut, means that the call was not scheduled for most of the
	// time: it consumed less fuel than a slow module does.
	Starved bool
	// Err is the error of the engine or of package abi; for a trap, with the stack.
	Err error
}

// Error returns one line: kind, cause, and the first line of Err.
func (f *Fault) Error() string {
	text := f.Kind.String() + ": " + f.Cause.String()
	if f.Starved {
		text += " while descheduled"
	}
	if f.Err != nil {
		line, _, _ := strings.Cut(f.Err.Error(), "\n")
		text += ": " + strings.TrimSuffix(line, " (recovered by wazero)")
	}
	return text
}

// Unwrap returns Err.
func (f *Fault) Unwrap() error { return f.Err }

// CauseOf returns the cause of a *Fault, 0 for any other error.
func CauseOf(err error) Cause {
	if f, ok := err.(*Fault); ok {
		return f.Cause
	}
	return 0
}
