// Package refine makes a module propose where the boundary between two stages
// should lie.
package refine

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

var (
	policy    policies.Refiner
	sequences = make([]policies.Sequence, 0, 1024) // used again at each call
)

// Register sets the policy. Call it once, from an init function.
func Register(p policies.Refiner) { policy = p }

// Decide decides a frame in a native program, as the module would.
func Decide(frame []byte) uint64 { return call.On(frame, decide) }

func decide(frame []byte) uint64 {
	if policy == nil {
		return abi.Result(abi.Unsupported, 0)
	}
	var b policies.BoundaryView
	var s abi.Status
	if b, sequences, s = abi.DecodeRefineCall(frame, sequences); s != abi.OK {
		return abi.Result(s, 0)
	}
	return abi.EncodeRefineResult(frame, policy.Refine(b))
}
