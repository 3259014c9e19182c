// Package outlier makes a module find replicas that carry too much.
package outlier

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

var policy policies.Detector

// Register sets the policy. Call it once, from an init function.
func Register(p policies.Detector) { policy = p }

// Decide decides a frame in a native program, as the module would.
func Decide(frame []byte) uint64 { return call.On(frame, decide) }

func decide(frame []byte) uint64 {
	if policy == nil {
		return abi.Result(abi.Unsupported, 0)
	}
	own, mean, s := abi.DecodeOutlierCall(frame)
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	return abi.EncodeOutlierResult(frame, policy.Excess(own, mean))
}
