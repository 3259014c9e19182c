package host

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Cause is the reason why a call failed.
type Cause uint8

// The causes. What follows a fault (the native answer, a new instance, the rollback of
// the module) is decided in wasm/slothost/pool.go. After Refused, TooLarge and Unknown
// the instance stays usable; after the others it is dead.
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

// Error returns one line: kind, cause, the first line of Err and, if the module refused the
// call or trapped, its reason.
func (f *Fault) Error() string {
	text := f.Kind.String() + ": " + f.Cause.String()
	if f.Starved {
		text += " while descheduled"
	}
	if f.Err != nil {
		line, _, _ := strings.Cut(f.Err.Error(), "\n")
		text += ": " + strings.TrimSuffix(line, " (recovered by wazero)")
	}
	if reason := f.reason(); reason != "" && (f.Cause == Refused || f.Cause == Trapped) {
		text += fmt.Sprintf(": %.*q", LogBytes, reason)
	}
	return text
}

// reason returns the line of Text that says most: of a failed Go program the one before its
// stack, else the first one.
func (f *Fault) reason() (reason string) {
	for line := range strings.Lines(f.Text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
		reason = cmp.Or(reason, line)
	}
	return reason
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

// notSentFault returns the error of a call that is not made.
func (i *Instance) notSentFault(k abi.Kind, n int, err error) error {
	switch {
	case i.dead != nil:
		return i.dead
	case i.fns[k] == nil:
		return i.fault(k, Unknown, nil)
	case CauseOf(err) != 0: // of enlarge
		return err
	case err == nil:
		err = fmt.Errorf("the frame takes %d bytes, at most %d are allowed", n, i.limits[k].Frame)
	}
	return i.fault(k, TooLarge, err)
}

// wrapAnswerError turns an error of package abi about an answer into a *Fault.
func (i *Instance) wrapAnswerError(k abi.Kind, err error) error {
	if err == nil {
		return nil
	}
	if s, ok := err.(abi.Status); ok && s <= abi.Failed {
		return i.fault(k, Refused, err)
	}
	if err == abi.ErrRule {
		err = fmt.Errorf("%w: %s", err, k.Rule())
	}
	return i.fault(k, BadOutput, err)
}

// fault returns a *Fault, and marks the instance as dead if the cause is fatal.
func (i *Instance) fault(k abi.Kind, c Cause, err error) error {
	if k == startKind {
		k = abi.Configure
	}
	f := &Fault{Kind: k, Cause: c, Text: i.lastOutput(), Err: err}
	if c.Fatal() && i.dead == nil {
		i.dead = &Fault{Kind: k, Cause: Dead, Err: err}
	}
	return f
}

// lastOutput returns the module's last message: from fail, else on standard error.
func (i *Instance) lastOutput() string {
	if len(i.failText) > 0 {
		return string(i.failText)
	}
	return string(i.stderr)
}
