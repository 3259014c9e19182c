// Package configure passes a configuration, whose format the author defines, to a
// module. ReadSettings reads the format of the built-in policies.
package configure

import (
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

// Policy is a policy that has a configuration.
type Policy interface {
	// Configure is called once per instance, before any decision, and not at all if
	// there is no configuration. It must not retain the bytes. An error refuses the
	// configuration; the host logs its text.
	Configure([]byte) error
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
	config, s := abi.DecodeConfigureCall(frame)
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	if err := policy.Configure(config); err != nil {
		call.Fail(err.Error())
		return abi.Result(abi.Failed, 0)
	}
	return abi.Result(abi.OK, 0)
}
