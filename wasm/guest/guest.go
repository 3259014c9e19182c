// Package guest is for authors of policies: the same Go source runs natively
// and, built as a WebAssembly module, in Cascade's sandbox.
//
// A policy is a value with a method of package policies, given to the package of
// its kind:
//
//	package main
//
//	import "github.com/cascadeinfer/cascade/wasm/guest/refine"
//
//	func init() { refine.Register(myRefiner{}) }
//
//	func main() {}
//
// and built as a reactor, whose main is never called:
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath -ldflags='-w -buildid=' -o my.wasm .
//
// The kinds are partition, refine, bidquote, bidselect, outlier, place, guard and
// configure. Each is a package because a module decides the kinds whose functions
// it exports, and it exports those of the packages that it imports. One value may
// be registered with several. They keep it in a variable, because a module's
// functions have no receiver; natively nothing but Decide reads it.
//
// # What a policy may do
//
// A call is a pure function of its arguments and of what this package gives:
// the host runs any instance for any call, and replays calls. A policy reads no
// clock, has no files and no network; packages fmt, os, encoding/json and all that
// link them make a module that the host refuses. It may allocate, but per-request
// kinds should not: a collection costs more fuel than such a call has. The host
// has garbage collected between calls where it can, so that this is rare, but a
// call's fuel then depends on the calls before it, and "cascade policy test" says so.
// Strings and slices among the arguments are good until the method returns. A
// panic ends the call, with its text and stack in the host's hands, and the
// instance with it; an error is returned where the method has one.
//
// The package is not safe for concurrent use; a guest has one thread.
package guest

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

// context is that of the call that runs, zero outside of one.
func context() abi.Context {
	c, _ := abi.DecodeContext(call.Frame())
	return c
}

// Now is the time of the call that runs, on the host's clock, which does not go
// back; 0 outside of a call, as in a native program.
func Now() policies.Micros { return context().Now }

// Seed is the randomness of the call that runs; 0 outside of one.
func Seed() uint64 { return context().Seed }

// State is what Keep was given at the last call of this kind for the same model
// (partition, guard) or the same replica (refine), whichever instance or generation
// of the module ran it: nothing at first, after the host has restarted, and for
// kinds that come with every request, which run at once and keep none. It is good
// until the call ends or Keep is called. A boundary that moves at every second call:
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

// Keep makes a copy of b the state. It reports false, and changes nothing, when
// the host has no room for it: of at most abi.MaxState bytes, none for kinds that
// come with every request, and none outside of a call. What a call that fails has
// kept is lost.
func Keep(b []byte) bool {
	c := context()
	if len(b) > len(c.State) {
		return false
	}
	copy(c.State, b)
	abi.SetState(call.Frame(), len(b))
	return true
}

// Level says how much a line of the log matters.
type Level uint32

// The levels.
const (
	Debug Level = iota
	Info
	Warn
	Error
)

// Log gives the host a line for its log, which it may cut or drop. In a native
// program it does nothing.
func Log(l Level, line string) { call.Log(uint32(l), line) }
