// Package call is what every kind of a guest shares: the region that frames
// come in, the one call that runs, and what happens when a policy panics. It
// knows no kind and decides nothing.
//
// A guest has one thread, and the host makes one call at a time: the package
// has state, and nothing in it is safe for concurrent use.
package call

import "github.com/cascadeinfer/cascade/wasm/abi"

// The frame of the call that runs: how long it is in the arena, or, of a native
// program, itself. A number costs no write barrier.
var (
	length uint32
	native []byte
)

// Run has the arena's first n bytes decided and returns the result. A panic of
// the policy becomes Failed, with its text told to the host; what the policy
// keeps may be half-changed then, which is why the host drops the instance.
func Run(n uint32, decide func(frame []byte) uint64) (result uint64) {
	f := frame(n)
	if f == nil {
		return abi.Result(abi.BadFrame, 0)
	}
	length = n
	// Asking for a panic that is not there would cost as much as the deferring.
	done := false
	defer func() {
		if !done {
			result = failed(recover())
		}
	}()
	result = decide(f)
	done = true
	return result
}

// On is Run for a frame of a native program.
func On(frame []byte, decide func(frame []byte) uint64) (result uint64) {
	native = frame
	defer func() {
		native = nil
		if why := recover(); why != nil {
			result = failed(why)
		}
	}()
	return decide(frame)
}

// Frame is the frame of the call that runs; after it, in a module, the last one.
// It is nil before the first, and in a native program outside of calls.
func Frame() []byte {
	if native != nil {
		return native
	}
	if length == 0 {
		return nil
	}
	return frame(length)
}

// failed is the result for a panic.
func failed(why any) uint64 {
	Fail(text(why))
	return abi.Result(abi.Failed, 0)
}

// text says what a panic was about, without package fmt.
func text(why any) string {
	switch v := why.(type) {
	case string:
		return v
	case error:
		return v.Error()
	case interface{ String() string }:
		return v.String()
	}
	return "the policy panicked with a value that is no text"
}

// Fail tells the host why the status will be Failed.
func Fail(why string) { hostFail(uint32(abi.Failed), why) }

// Log gives the host a line.
func Log(level uint32, line string) { hostLog(level, line) }
