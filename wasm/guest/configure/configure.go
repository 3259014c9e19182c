// Package configure gives a module the configuration that its author defines.
package configure

import (
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

// Policy takes a configuration.
type Policy interface {
	// Configure is called once per instance, before any decision, and not at all
	// where there is no configuration. It does not keep the bytes. An error
	// refuses the configuration, with its text in the host's log.
	Configure([]byte) error
}

var policy Policy

// Register names what is configured. It is called once, from an init function.
func Register(p Policy) { policy = p }

// Decide answers one frame as the module would, in a native program.
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
