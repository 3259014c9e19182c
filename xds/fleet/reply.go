package fleet

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Reply is what a replica is told in answer to its report.
type Reply struct {
	Epoch policies.Epoch // of its model's plan
	// MeanHeld is the mean of the tokens that the replicas of its stage hold, as
	// of the last tick or the last plan; Load.Held is what to compare it with. Where there is no such mean,
	// because the replica is in no stage or nobody's report counts, it is the
	// replica's own figure: whoever compares itself with it is no outlier.
	MeanHeld float64
	Drain    bool    // somebody wants the replica emptied
	Refine   *Refine // nil unless boundaries are refined and its stage has one; not to be changed
}

// Reply answers the last report of a replica; ok is false for one that is not
// configured.
func (s *State) Reply(id policies.ReplicaID) (reply Reply, ok bool) {
	r := s.byID[id]
	if r == nil || r.gone {
		return Reply{}, false
	}
	m := s.model(r.Model)
	reply = Reply{Epoch: m.plan.Epoch, MeanHeld: float64(r.report.Load.Held), Drain: r.ordered()}
	if i := r.stage; i >= 0 && i < len(m.held) && m.held[i] >= 0 {
		reply.MeanHeld = m.held[i]
	}
	// Batches by other buckets than its own would say nothing to it.
	if i := r.stage; i >= 0 && i < len(m.borders) && sameEdges(r.report.Flow.Edges, m.Edges) {
		reply.Refine = &m.borders[i]
	}
	return reply, true
}

// encode puts a reply on the wire.
func (r Reply) encode(sequence uint64) *api.LoadReply {
	out := &api.LoadReply{Sequence: sequence, Epoch: uint64(r.Epoch), StageMeanHeld: r.MeanHeld, Drain: r.Drain}
	if b := r.Refine; b != nil {
		out.Refine = &api.Refine{
			Epoch: uint64(b.Epoch), Boundary: int64(b.Boundary), Low: int64(b.Low), High: int64(b.High),
			Peers: uint32(b.Peers), Successors: uint32(b.Successors), Next: make([]*api.Batch, len(b.Next)),
		}
		if b.High == policies.Unbounded {
			out.Refine.High = 0
		}
		for i, x := range b.Next {
			out.Refine.Next[i] = &api.Batch{N: x.N, SumInput: x.SumI, SumInput2: x.SumI2, SumLength: x.SumL}
		}
	}
	return out
}
