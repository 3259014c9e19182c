// Package place makes a module decide where a request starts.
package place

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

var (
	policy policies.Placer
	// sites is used again at each call: fronts are shown a sample of the peers.
	sites = make([]policies.Candidate, 0, 64)
)

// Register sets the policy. Call it once, from an init function.
func Register(p policies.Placer) { policy = p }

// Decide decides a frame in a native program, as the module would.
func Decide(frame []byte) uint64 { return call.On(frame, decide) }

func decide(frame []byte) uint64 {
	if policy == nil {
		return abi.Result(abi.Unsupported, 0)
	}
	a, s := abi.DecodePlaceCall(frame, sites)
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	sites = a.Peers // longer, if it had to be
	return abi.EncodePlaceResult(a, policy.Place(a))
}
