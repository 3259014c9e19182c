// Package call is what every kind of a guest shares: the region that frames
// come in, and the one call that runs. It knows no kind and decides nothing.
//
// A guest has one thread, and the host makes one call at a time: the package
// has state, and nothing in it is safe for concurrent use.
package call

import (
	"runtime"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// The frame of the call that runs: how long it is in the arena, or, of a native
// program, itself. A number costs no write barrier.
var (
	length uint32
	native []byte
)

// Begin returns the arena's first n bytes, the frame of the call that begins; nil,
// which no kind takes for a frame, when there are fewer.
//
// Nobody recovers from a panic: what the policy keeps could be half-changed, so
// that the instance must not live on, and what Go's runtime then prints, the stack
// included, is more than could be told by fail. To be ready for one would take a
// tenth of a bid's time.
func Begin(n uint32) []byte {
	length = n
	return frame(n)
}

// BeginLarge is Begin for kinds whose frames can be large, and whose policies then
// allocate much. Go collects garbage only when the heap has grown by 4 MiB, which
// in a memory of 8 can be too late; so before a large frame it is told to. That
// takes some ten thousand ticks, of the millions that these kinds have.
func BeginLarge(n uint32) []byte {
	if n > first {
		runtime.GC()
	}
	return Begin(n)
}

// On has a frame of a native program decided.
func On(frame []byte, decide func(frame []byte) uint64) uint64 {
	native = frame
	defer func() { native = nil }()
	return decide(frame)
}

// Frame is the frame of the call that runs; after it, in a module, the last one.
// It is empty before the first, and in a native program outside of calls.
func Frame() []byte {
	if native != nil {
		return native
	}
	return frame(length)
}

// Fail tells the host why the status will be Failed.
func Fail(why string) { hostFail(uint32(abi.Failed), why) }

// Log gives the host a line.
func Log(level uint32, line string) { hostLog(level, line) }
