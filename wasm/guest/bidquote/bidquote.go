// Package bidquote makes a module quote bids for migrations.
package bidquote

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

var policy policies.Quoter

// Register sets the policy. Call it once, from an init function.
func Register(p policies.Quoter) { policy = p }

// Decide decides a frame in a native program, as the module would.
func Decide(frame []byte) uint64 { return call.On(frame, decide) }

func decide(frame []byte) uint64 {
	if policy == nil {
		return abi.Result(abi.Unsupported, 0)
	}
	ask, s := abi.DecodeQuoteCall(frame)
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	bid, ok := policy.Quote(ask.Occupancy, ask.Migration)
	return abi.EncodeQuoteResult(frame, bid, ok)
}
