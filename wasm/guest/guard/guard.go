// Package guard makes a module say whether a plan may replace the one in force.
package guard

import (
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

// Policy judges plans before they come into force.
type Policy interface {
	// Guard returns what is wrong with the change, and whether it is denied.
	// It is pure and does not keep the plans.
	Guard(abi.Change) (abi.Denial, bool)
}

var policy Policy

// Register sets the policy. Call it once, from an init function.
func Register(p Policy) { policy = p }

// Decide decides a frame in a native program, as the module would.
func Decide(frame []byte) uint64 { return call.On(frame, decide) }

func decide(frame []byte) uint64 {
	if policy == nil {
		return abi.Result(abi.Unsupported, 0)
	}
	ch, s := abi.DecodeGuardCall(frame)
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	d, denied := policy.Guard(ch)
	return abi.EncodeGuardResult(frame, d, denied)
}
