package loader

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// before14 plans as a module that was built before cascade-policy/1.4: with the iteration model in the place of the
// QoE model, which its frames did not have.
func before14(p policies.Partitioner) func(policies.Workload) (policies.Partition, error) {
	return func(w policies.Workload) (policies.Partition, error) {
		w.QoE = policies.QoE{D0: w.Cost.D0, D1: w.Cost.D1, D2: w.Cost.D2, D3: w.Cost.D3, D4: w.Cost.D4}
		return p.Partition(w)
	}
}

// TestOldPartition finds planners by snapshots that were built before cascade-policy/1.4, and no other planners.
func TestOldPartition(t *testing.T) {
	for name, p := range map[string]policies.Partitioner{
		"exact, flow": partition.Exact{}, "exact": partition.Exact{Objective: partition.Snapshot},
		"recursion": partition.Recursion{Objective: partition.Snapshot}, "two-phase": partition.TwoPhase{Objective: partition.Snapshot},
	} {
		if ignoresQoE(p.Partition) {
			t.Errorf("%s is taken for an old module", name)
		}
		if old := strings.HasSuffix(name, "flow"); ignoresQoE(before14(p)) == old {
			t.Errorf("%s, built before 1.4: found %v", name, !old)
		}
	}
}

// oneStage returns a partition module that proposes one stage, at the price that code pushes, the bits of an f64.
// Local 1 is the address of the first record, local 2 that of the arguments.
func oneStage(price ...[]byte) []byte {
	h := func(field uint32, local byte) []byte {
		return hosttest.Cat(hosttest.I32(0), hosttest.Load32(hosttest.Arena+field), hosttest.I32(hosttest.Arena), hosttest.Add, hosttest.Set(local))
	}
	word := func(offset uint32, v int32) []byte {
		return hosttest.Cat(hosttest.Get(3), hosttest.I32(v), hosttest.Store32(offset))
	}
	long := func(offset uint32, v ...[]byte) []byte {
		return hosttest.Cat(hosttest.Get(3), hosttest.Cat(v...), hosttest.Store64(offset))
	}
	return hosttest.Policy(hosttest.Function(abi.Partition.Export(), []byte{hosttest.TypeI32, hosttest.TypeI32, hosttest.TypeI32},
		h(24, 1), h(16, 2), h(56, 3),
		word(0, 32), word(4, 0), word(8, 1), word(12, 24), // the head of the output, and its stage
		long(16, price...), long(24, price...),
		long(32, hosttest.I64(1<<63-1)), long(40, hosttest.Get(2), hosttest.Load64(24)), long(48, hosttest.I64(0)),
		hosttest.Result(0, 56))).Encode()
}

// TestOldPartitionIsLogged loads modules whose plans cost as many seconds as the first bucket has requests in flight,
// and as many times D0 of the QoE model.
func TestOldPartitionIsLogged(t *testing.T) {
	inFlight := hosttest.Cat(hosttest.Get(1), hosttest.Load64(64))
	product := hosttest.Cat(inFlight, hosttest.Op(0xbf), hosttest.Get(2), hosttest.Load64(144), hosttest.Op(0xbf, 0xa2, 0xbd)) // as f64
	for name, price := range map[string][]byte{"old": inFlight, "new": product} {
		var log testkit.Log
		c := config(abi.Partition)
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		made(t, c, offer(t, oneStage(price), abi.Partition, nil), func() {})
		if n := strings.Count(log.String(), "built before cascade-policy/1.4"); n == 1 != (name == "old") {
			t.Errorf("%s module: logged %d times: %s", name, n, log.String())
		}
	}
}
