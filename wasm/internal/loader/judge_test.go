package loader

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/policy"
)

// fixed is a policy with constant answers.
type fixed struct {
	winner int
	at     policies.Tokens
	part   policies.Partition
	err    error
	peer   policies.ReplicaID
	excess policies.Tokens
}

func (f fixed) Select([]policies.Bid) int                               { return f.winner }
func (f fixed) Refine(policies.BoundaryView) policies.Tokens            { return f.at }
func (f fixed) Partition(policies.Workload) (policies.Partition, error) { return f.part, f.err }
func (f fixed) Place(policies.Arrival) policies.ReplicaID               { return f.peer }
func (f fixed) Excess(_, _ policies.Tokens) policies.Tokens             { return f.excess }
func (f fixed) record(k abi.Kind, ask func(*policy.NativeRecorder)) (r host.Record) {
	l := policy.NewNativeRecorder(policy.Native{Selector: f, Refiner: f, Partitioner: f, Placer: f, Detector: f}, 1, 1, nil)
	ask(l)
	return l.Records()[0]
}

func TestJudge(t *testing.T) {
	bids := func(l *policy.NativeRecorder) {
		l.Select([]policies.Bid{{Load: 5, Start: 5}, {Load: 5, Start: 6}, {Load: 6, Start: 4}, {Load: 5, Start: 5}})
	}
	w := workloads()[0]
	split := func(l *policy.NativeRecorder) { l.Partition(w) }
	best, err := partition.Exact{}.Partition(w)
	if err != nil {
		t.Fatal(err)
	}
	bad := policies.Partition{Cuts: []policies.Tokens{16_384}, Counts: []int{1, 7}}
	border := func(l *policy.NativeRecorder) {
		l.Refine(policies.BoundaryView{Boundary: 5000, High: policies.Unbounded, Peers: 1, Successors: 1, QoE: policytest.H200QoE(),
			Local: sequences(64, 1000), Next: sequences(4, 9000)})
	}
	arrival := func(l *policy.NativeRecorder) {
		l.Place(policies.Arrival{Peers: []policies.Candidate{{ID: "a"}, {ID: "b"}}})
	}
	loads := func(l *policy.NativeRecorder) { l.Excess(100, 10) }
	for _, c := range []struct {
		name              string
		kind              abi.Kind
		ask               func(*policy.NativeRecorder)
		active, candidate fixed
		differ, worse     bool
	}{
		{"the same bid", abi.Select, bids, fixed{winner: 1}, fixed{winner: 1}, false, false},
		{"as good a bid", abi.Select, bids, fixed{winner: 0}, fixed{winner: 3}, true, false},
		{"a later bid", abi.Select, bids, fixed{winner: 0}, fixed{winner: 1}, true, true},
		{"a better bid", abi.Select, bids, fixed{winner: 1}, fixed{winner: 0}, true, false},
		{"another kind of bid", abi.Select, bids, fixed{winner: 0}, fixed{winner: 2}, true, false},
		{"no bid", abi.Select, bids, fixed{winner: 0}, fixed{winner: -1}, true, true},
		{"a bid where there was none", abi.Select, bids, fixed{winner: -1}, fixed{winner: 2}, true, false},
		{"the same partition", abi.Partition, split, fixed{part: best}, fixed{part: policies.Partition{Cuts: best.Cuts, Counts: best.Counts, Cost: 99}}, false, false},
		{"a worse partition", abi.Partition, split, fixed{part: best}, fixed{part: bad}, true, true},
		{"a better partition", abi.Partition, split, fixed{part: bad}, fixed{part: best}, true, false},
		{"no partition", abi.Partition, split, fixed{part: best}, fixed{err: policies.ErrInfeasible}, true, true},
		{"a partition where there was none", abi.Partition, split, fixed{err: policies.ErrInfeasible}, fixed{part: best}, true, false},
		{"neither has one", abi.Partition, split, fixed{err: policies.ErrInfeasible}, fixed{err: policies.ErrInfeasible}, false, false},
		{"the same boundary", abi.Refine, border, fixed{at: 2000}, fixed{at: 2000}, false, false},
		{"a worse boundary", abi.Refine, border, fixed{at: 2000}, fixed{at: 500}, true, true},
		{"the boundary in force, where the active policy gains", abi.Refine, border, fixed{at: 2000}, fixed{at: 5000}, true, true},
		{"one as good as that in force, where the active policy gains", abi.Refine, border, fixed{at: 2000}, fixed{at: 3000}, true, true},
		{"a part of what the active policy gains", abi.Refine, border, fixed{at: 2000}, fixed{at: 1850}, true, false},
		{"the boundary in force, where the active policy loses", abi.Refine, border, fixed{at: 1030}, fixed{at: 5000}, true, false},
		{"neither moves", abi.Refine, border, fixed{at: 5000}, fixed{at: 5000}, false, false},
		{"a worse boundary that is better than the active policy's", abi.Refine, border, fixed{at: 1030}, fixed{at: 1060}, true, false},
		{"a better boundary", abi.Refine, border, fixed{at: 9_000_000}, fixed{at: 2000}, true, false},
		{"another peer", abi.Place, arrival, fixed{peer: "a"}, fixed{peer: "b"}, true, false},
		{"the same peer", abi.Place, arrival, fixed{peer: "a"}, fixed{peer: "a"}, false, false},
		{"another excess", abi.Outlier, loads, fixed{excess: 5}, fixed{excess: 6}, true, false},
		{"the same excess", abi.Outlier, loads, fixed{excess: 5}, fixed{excess: 5}, false, false},
	} {
		a, b := c.active.record(c.kind, c.ask), c.candidate.record(c.kind, c.ask)
		if differ, worse := newJudge(natives).compare(&a, &b); differ != c.differ || worse != c.worse {
			t.Errorf("%s: differs %v, worse %v", c.name, differ, worse)
		}
	}
}
