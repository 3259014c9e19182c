// Package bidselect makes a module decide which bid wins.
package bidselect

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

var (
	policy policies.Selector
	// bids is used again at each call: there is room for more than are asked.
	bids = make([]policies.Bid, 0, 64)
)

// Register sets the policy. Call it once, from an init function.
func Register(p policies.Selector) { policy = p }

// Decide decides a frame in a native program, as the module would.
func Decide(frame []byte) uint64 { return call.On(frame, decide) }

func decide(frame []byte) uint64 {
	if policy == nil {
		return abi.Result(abi.Unsupported, 0)
	}
	var s abi.Status
	if bids, s = abi.DecodeSelectCall(frame, bids); s != abi.OK {
		return abi.Result(s, 0)
	}
	return abi.EncodeSelectResult(policy.Select(bids))
}
