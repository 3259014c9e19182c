package loadreport

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Reply is the control plane's answer to a report.
type Reply struct {
	Epoch policies.Epoch // of the plan of the replica's model
	// MeanHeld is the mean of the tokens that the replicas of its stage hold, as of the
	// last tick or the last plan, for comparison with Load.Held. Where there is no
	// mean, because the replica is in no stage or no report of the stage counts, it is
	// the replica's own figure, so that the replica is no outlier.
	MeanHeld float64
	Drain    bool                // the configuration or an operator drains the replica
	Boundary *partition.Boundary // nil unless boundaries are refined and its stage has one; read-only
	// PrefillRanges is which prompts the prefill replicas of the model are meant for; nil: all
	// are for all. Read-only.
	PrefillRanges []policies.PrefillRange
}

// Encode returns the message for a reply to the report with this sequence number.
func (r Reply) Encode(sequence uint64) *api.LoadReply {
	out := &api.LoadReply{Sequence: sequence, Epoch: uint64(r.Epoch), StageMeanHeld: r.MeanHeld, Drain: r.Drain}
	if b := r.Boundary; b != nil {
		out.Refine = &api.Refine{
			Epoch: uint64(b.Epoch), Boundary: int64(b.At), Low: int64(b.Low), High: int64(b.High),
			Peers: uint32(b.Peers), Successors: uint32(b.Successors), Next: make([]*api.Batch, len(b.Next)),
		}
		if b.High == policies.Unbounded {
			out.Refine.High = 0
		}
		for i, x := range b.Next {
			out.Refine.Next[i] = &api.Batch{N: x.N, SumInput: x.SumI, SumInput2: x.SumI2, SumLength: x.SumL}
		}
	}
	for _, x := range r.PrefillRanges {
		high := x.High
		if high == policies.Unbounded {
			high = 0
		}
		out.PrefillRanges = append(out.PrefillRanges, &api.PrefillRange{Replica: string(x.Replica), Low: int64(x.Low), High: int64(high)})
	}
	return out
}
