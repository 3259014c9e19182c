// Package call holds what the packages of all kinds share: the arena for frames, and the
// running call. It does not depend on the kind.
//
// A guest has one thread, and the host makes one call at a time: the package has global
// state, and its functions are not safe for concurrent use.
package call

import (
	"runtime"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// The frame of the running call: its length in the arena, or, in a native program, the
// frame itself. A number costs no write barrier.
var (
	length uint32
	native []byte
)

// Begin returns the frame of a new call: the first n bytes of the arena, or nil, which
// is malformed for every kind, if the arena is smaller.
//
// Calls do not recover from panics. The policy's variables could be inconsistent, so the
// instance must die, and the panic message of Go's runtime with its stack says more than
// fail could. A deferred recover would take a tenth of a bid's time.
func Begin(n uint32) []byte {
	length = n
	return frame(n)
}

// BeginLarge is Begin for kinds whose frames can be large, and whose policies then
// allocate much. Go collects garbage only after the heap has grown by 4 MiB, which can
// be too late in a memory of 8 MiB, so BeginLarge runs a collection before a large
// frame. That takes some ten thousand ticks, of the millions that these kinds have.
func BeginLarge(n uint32) []byte {
	if n > initialSize {
		runtime.GC()
	}
	return Begin(n)
}

// On calls decide for a frame in a native program.
func On(frame []byte, decide func(frame []byte) uint64) uint64 {
	native = frame
	defer func() { native = nil }()
	return decide(frame)
}

// Frame returns the frame of the running call. In a module it is the last call's frame
// between calls, and empty before the first. In a native program it is empty outside of
// calls.
func Frame() []byte {
	if native != nil {
		return native
	}
	return frame(length)
}

// Fail gives the host the reason for a status Failed or Unsupported.
func Fail(why string) { hostFail(uint32(abi.Failed), why) }

// Log writes a line to the host's log.
func Log(level uint32, line string) { hostLog(level, line) }
