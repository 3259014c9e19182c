package abi

import (
	"encoding/binary"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestPartitionArgumentsOf10 decodes a frame as hosts before 1.4 wrote it, without the QoE model:
// it is zero, also in a workload that had one.
func TestPartitionArgumentsOf10(t *testing.T) {
	frame := make([]byte, 4096)
	n := testkit.Must(EncodePartitionCall(frame, Call{}, goldenWorkload()))
	w := policies.Workload{}
	if s := DecodePartitionCall(frame[:n], &w); s != OK || w.QoE != goldenWorkload().QoE {
		t.Fatalf("status %v, QoE %+v", s, w.QoE)
	}
	binary.LittleEndian.PutUint32(frame[20:], 144) // arg_len; what follows is a hole
	if s := DecodePartitionCall(frame[:n], &w); s != OK || w.QoE != (policies.QoE{}) || w.Cost != goldenWorkload().Cost {
		t.Errorf("status %v, QoE %+v, cost %+v", s, w.QoE, w.Cost)
	}
	binary.LittleEndian.PutUint32(frame[20:], 136)
	if s := DecodePartitionCall(frame[:n], &w); s != BadFrame {
		t.Errorf("arguments that are shorter than those of 1.0: %v", s)
	}
}
