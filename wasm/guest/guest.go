// Package guest is the SDK for authors of policies in Go: the same source runs
// natively and, built as a WebAssembly module, in Cascade's sandbox.
//
// A policy is a value that implements an interface of package policies. Register it
// with the package of its kind:
//
//	package main
//
//	import "github.com/cascadeinfer/cascade/wasm/guest/refine"
//
//	func init() { refine.Register(myRefiner{}) }
//
//	func main() {}
//
// Build it as a reactor, whose main is never called:
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath -ldflags='-w -buildid=' -o my.wasm .
//
// The packages are partition, refine, bidquote, bidselect, outlier, place, guard and
// configure. A module decides the kinds whose functions it exports, and it exports the
// functions of the packages that it imports. One value may be registered with several
// of them. Each package keeps its value in a variable, because a module's functions
// have no receiver; natively only Decide reads it.
//
// # What a policy may do
//
// A call is a pure function of its arguments and of Now, Seed and State: the host runs
// any instance for any call, and replays calls. A policy reads no clock and has no files
// and no network; the host refuses modules that link fmt, os, encoding/json or packages
// that use them. A policy may allocate, but per-request kinds should not: a garbage
// collection costs more fuel than such a call has. The host runs collections between
// calls where it can, which makes this rare, but the fuel of a call then depends on the
// calls before it; "cascade policy test" reports that. Strings and slices among the
// arguments are valid until the method returns. A panic ends the call and the instance,
// and the host gets its text and stack; methods with an error result return an error.
//
// The package is not safe for concurrent use; a guest has one thread.
package guest

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

// context returns the context of the running call, zero outside of calls.
func context() abi.Context {
	c, _ := abi.DecodeContext(call.Frame())
	return c
}

// Now returns the time of the running call, on the host's monotonic clock. Outside of a
// call, as in a native program, it is 0.
func Now() policies.Micros { return context().Now }

// Seed returns the random seed of the running call, 0 outside of calls.
func Seed() uint64 { return context().Seed }

// State returns the bytes that the last call of this kind passed to Keep, for the same
// model (partition, guard) or the same replica (refine), whichever instance or
// generation of the module ran it. It is empty at first, after a restart of the host,
// and for per-request kinds, whose calls run concurrently and have no state. It is valid
// until the call ends or Keep is called. Example: a boundary that moves at every second
// call.
//
//	func (r refiner) Refine(b policies.BoundaryView) policies.Tokens {
//		calls := byte(0)
//		if s := guest.State(); len(s) == 1 {
//			calls = s[0]
//		}
//		guest.Keep([]byte{calls + 1})
//		if calls%2 == 0 {
//			return b.Boundary
//		}
//		return r.better(b)
//	}
func State() []byte {
	c := context()
	return c.State[:c.Length]
}

// Keep makes a copy of b the state. It returns false, and changes nothing, if b exceeds
// the space for the state: at most abi.MaxState bytes, none for per-request kinds, and
// none outside of a call. The state that a failed call kept is lost.
func Keep(b []byte) bool {
	c := context()
	if len(b) > len(c.State) {
		return false
	}
	copy(c.State, b)
	abi.SetState(call.Frame(), len(b))
	return true
}

// Level is the severity of a log line.
type Level uint32

// The levels.
const (
	Debug Level = iota
	Info
	Warn
	Error
)

// Log writes a line to the host's log. The host may truncate or drop it. In a native
// program Log does nothing.
func Log(l Level, line string) { call.Log(uint32(l), line) }
