package planner

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

var edges = []policies.Tokens{0, 100}

// newView returns a view of two stages, [0,100) of a and b, [100,∞) of c, and its plan of epoch
// 7. All replicas are ready, hold 10, 20 and 40 tokens, and have reported a second ago; the
// flow of each is 1 in all cells, and it runs a request.
func newView() (*View, policies.Plan) {
	plan := policies.Plan{Model: "m", Epoch: 7, Stages: []policies.Stage{
		{High: 100, Replicas: []policies.ReplicaID{"a", "b"}}, {Low: 100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"c"}},
	}}
	v := &View{Grace: 5 * policies.Second, HalfLife: 10 * policies.Second}
	for i, id := range []policies.ReplicaID{"a", "b", "c"} {
		r := ReplicaView{
			Replica: policies.Replica{ID: id, Model: "m", Capacity: policies.Capacity{KV: 100, Batch: 8}}, Stage: plan.StageOfReplica(id),
			Ready: true, Seen: 5, Reported: true, Age: policies.Second, Flow: policies.NewFlow(edges), Snapshot: []policies.Batch{{N: 1}, {}},
			Load: policies.Load{Running: 2, Held: 10 << i, Iteration: 0.5},
		}
		for _, column := range r.Flow.Columns() {
			column[0], column[1] = 1, 1
		}
		v.Replicas = append(v.Replicas, r)
	}
	return v, plan
}

// TestWhatCounts checks which replicas count in which sum: b is changed, and the sums are those
// of the first stage.
func TestWhatCounts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ReplicaView)
		flow   float64 // of all replicas
		held   float64
		flight float64
		pace   float64 // requests
	}{
		"all is well":     {func(*ReplicaView) {}, 3, 15, 2, 4},
		"at the grace":    {func(r *ReplicaView) { r.Age = 5 * policies.Second }, 3, 15, 2, 4},
		"late":            {func(r *ReplicaView) { r.Age = 15 * policies.Second }, 2.5, 10, 1, 2},
		"late for long":   {func(r *ReplicaView) { r.Age = 100 * policies.Second }, 2, 10, 1, 2},
		"unready":         {func(r *ReplicaView) { r.Ready = false }, 3, 10, 1, 4},
		"restored":        {func(r *ReplicaView) { r.Restored, r.Load, r.Snapshot = true, policies.Load{}, nil }, 3, 10, 1, 2},
		"restored, loads": {func(r *ReplicaView) { r.Restored = true }, 3, 10, 1, 4},
		"never reported":  {func(r *ReplicaView) { r.Reported, r.Age = false, 0 }, 2, 10, 1, 2},
		"idle":            {func(r *ReplicaView) { r.Load.Iteration = 0 }, 3, 15, 2, 2},
		"other buckets":   {func(r *ReplicaView) { r.Flow.Edges = []policies.Tokens{0, 50} }, 2, 15, 1, 4},
		"absurd load":     {func(r *ReplicaView) { r.Load.Held = 1 << 30 }, 3, 105, 2, 4},
		"in no stage":     {func(r *ReplicaView) { r.Stage = -1 }, 3, 10, 1, 2},
	} {
		v, plan := newView()
		c.change(&v.Replicas[1])
		got := fmt.Sprint(v.Flow(edges).Tokens[1], v.MeanHeld(plan)[0], v.InFlightByStage(plan, edges)[0][0].N, v.Paces(plan)[0].Running)
		if want := fmt.Sprint(c.flow, c.held, c.flight, c.pace); got != want {
			t.Errorf("%s: flow, held, in flight and running are %s, want %s", name, got, want)
		}
		if n := v.Flow(edges).Seen; n != 15 {
			t.Errorf("%s: %d requests seen, want those of all", name, n)
		}
	}
	v, plan := newView()
	if p := v.Paces(plan)[1]; p != (Pace{2, 4}) {
		t.Errorf("two requests with two tokens a second each: %+v", p)
	}
	v.Replicas[2].Ready = false
	if got := v.MeanHeld(plan); got[1] != -1 {
		t.Errorf("a stage without a ready replica holds %v", got[1])
	}
}

// TestProposals checks which proposals for the end of the first stage count.
func TestProposals(t *testing.T) {
	good := partition.BoundaryProposal{Epoch: 7, Boundary: 60}
	for name, c := range map[string]struct {
		a, b   partition.BoundaryProposal
		change func(*ReplicaView) // of b
		want   []policies.Tokens
	}{
		"both":                    {good, partition.BoundaryProposal{Epoch: 7, Boundary: 900}, nil, []policies.Tokens{60, 900}},
		"half of the stage":       {good, partition.BoundaryProposal{}, nil, nil},
		"the other is unready":    {good, good, func(r *ReplicaView) { r.Ready = false }, []policies.Tokens{60}},
		"the other is late":       {good, good, func(r *ReplicaView) { r.Age = 6 * policies.Second }, []policies.Tokens{60}},
		"for another plan":        {good, partition.BoundaryProposal{Epoch: 6, Boundary: 60}, nil, nil},
		"for another stage":       {good, partition.BoundaryProposal{Epoch: 7, Low: 1, Boundary: 60}, nil, nil},
		"beyond the context":      {good, partition.BoundaryProposal{Epoch: 7, Boundary: 1001}, nil, nil},
		"at the context":          {good, partition.BoundaryProposal{Epoch: 7, Boundary: 1000}, nil, []policies.Tokens{60, 1000}},
		"at the start":            {good, partition.BoundaryProposal{Epoch: 7, Boundary: 0}, nil, nil},
		"beyond the next stage's": {good, partition.BoundaryProposal{Epoch: 7, Boundary: policies.Unbounded}, nil, nil},
	} {
		v, plan := newView()
		v.Replicas[0].Proposal, v.Replicas[1].Proposal = c.a, c.b
		if c.change != nil {
			c.change(&v.Replicas[1])
		}
		if got := v.Proposals(plan, 1000); len(got) != 1 || !slices.Equal(got[0], c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestViewBoundaries checks what the replicas of a stage get to know of its end.
func TestViewBoundaries(t *testing.T) {
	v, plan := newView()
	v.Replicas[1].Ready = false
	got := v.Boundaries(plan, edges)
	if len(got) != 1 || got[0].Epoch != 7 || got[0].At != 100 || got[0].Low != 0 || got[0].High != policies.Unbounded || got[0].Peers != 1 || got[0].Successors != 1 || got[0].Next[0].N != 1 {
		t.Errorf("%+v", got)
	}
	v.Replicas[0].Ready, v.Replicas[2].Ready = false, false
	if b := v.Boundaries(plan, edges)[0]; b.Peers != 1 || b.Successors != 1 || b.Next[0].N != 0 {
		t.Errorf("nothing is ready: %+v", b)
	}
}
