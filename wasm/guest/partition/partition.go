// Package partition makes a module divide fleets into length stages.
package partition

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/internal/call"
)

var (
	policy   policies.Partitioner
	workload policies.Workload // its slices are used again at each call
)

// Register sets the policy. Call it once, from an init function.
func Register(p policies.Partitioner) { policy = p }

// Decide decides a frame in a native program, as the module would.
func Decide(frame []byte) uint64 { return call.On(frame, decide) }

func decide(frame []byte) uint64 {
	if policy == nil {
		return abi.Result(abi.Unsupported, 0)
	}
	if s := abi.DecodePartitionCall(frame, &workload); s != abi.OK {
		return abi.Result(s, 0)
	}
	if workload.Snapshot != nil && workload.QoE == (policies.QoE{}) {
		call.Fail("the host is older than cascade-policy/1.4: it sends requests in flight without a QoE model")
		return abi.Result(abi.Unsupported, 0)
	}
	p, err := policy.Partition(workload)
	if err != nil && err != policies.ErrInfeasible {
		call.Fail(err.Error())
		return abi.Result(abi.Failed, 0)
	}
	return abi.EncodePartitionResult(frame, p, err == nil)
}
