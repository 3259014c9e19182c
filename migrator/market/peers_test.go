package market

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// TestMeanOfStage checks by which mean a replica knows that it is overloaded: that of its peers'
// summaries, else the control plane's, and none that is older than place.MaxAge.
func TestMeanOfStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := good(frontend.LocalLeg{Request: policies.Request{ID: "q", Input: 100, Output: 1}, Last: time.Now()}, frontend.LocalLeg{Request: policies.Request{ID: "p", Input: 900, Output: 1}, Last: time.Now()})
		c.Load, c.Detector, c.Capacity = func() policies.Load { return policies.Load{Held: 1002} }, bidask.Detector{}, 1<<20
		m := testkit.Must(New(c))
		view := View{
			Plan: policies.Plan{Model: "m", Stages: []policies.Stage{
				{High: 5000, Replicas: []policies.ReplicaID{"a", "b", "c"}}, {Low: 5000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"d"}},
			}},
			Peers: []policies.Replica{{ID: "b", Peer: "b"}, {ID: "c", Peer: "c"}, {ID: "d", Peer: "d"}},
		}
		want := func(what string, mean policies.Tokens, known bool) {
			t.Helper()
			m.SetView(view)
			m.scan()
			if got, ok := m.trader.StageMean(m.now(), m.measure()); ok != known || known && got != mean {
				t.Errorf("%s: mean %d, %v; want %d, %v", what, got, ok, mean, known)
			}
		}
		want("nothing known", 0, false)
		if n := m.Status().Offered[policies.Outlier]; n != 0 {
			t.Errorf("%d requests offered without a mean", n)
		}
		view.StageMean, view.MeanAt = 2000, time.Now()
		want("the control plane's", 2000, true)
		m.ReceiveSummary("d", &api.Summary{Held: 7})
		want("a peer of another stage", 2000, true)
		m.ReceiveSummary("b", &api.Summary{Held: 96})
		want("half of the peers", 549, true)
		m.ReceiveSummary("c", &api.Summary{Held: 402})
		want("all peers", 500, true)
		time.Sleep(2 * time.Second) // since the requests arrived
		m.scan()
		if n := m.Status().Offered[policies.Outlier]; n != 1 {
			t.Errorf("%d requests offered by an overloaded replica", n)
		}
		time.Sleep(time.Second)
		view.MeanAt = time.Now()
		time.Sleep(time.Second)
		want("old summaries, a recent mean of the control plane", 2000, true)
		time.Sleep(3 * time.Second)
		want("a control plane that was lost four seconds ago", 0, false)
	})
}

// TestProposalBySequences checks that a boundary is proposed by the requests of the successors
// and not by their buckets' means, that those of silent successors are assumed alike, and that
// the control plane's means are used only without any.
func TestProposalBySequences(t *testing.T) {
	var residents []frontend.LocalLeg
	local := []policies.Sequence{}
	for i := range policies.Tokens(20) {
		residents = append(residents, frontend.LocalLeg{Request: policies.Request{ID: "q", Input: 100, Output: 50 * i}})
		local = append(local, policies.Sequence{Input: 100, Length: 100 + 50*i})
	}
	c := good(residents...)
	c.Refiner, c.QoE = partition.WeightedRefiner{Damping: partition.Damping{Smoothing: 1000}}, policies.QoE{D0: 0.01, D1: 1e-4, D4: 1e-6}
	m := testkit.Must(New(c))
	ask := &xds.Refine{Epoch: 7, Boundary: 1500, Peers: 1, Successors: 2, Next: []*xds.Batch{{N: 12, SumInput: 12 * 4000, SumLength: 12 * 5000}}}
	m.SetView(View{
		Plan:   policies.Plan{Model: "m", Stages: []policies.Stage{{High: 1500, Replicas: []policies.ReplicaID{"a"}}, {Low: 1500, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b", "c"}}}},
		Peers:  []policies.Replica{{ID: "b", Peer: "b"}, {ID: "c", Peer: "c"}},
		Refine: ask,
	})
	propose := func(next []policies.Sequence) policies.Tokens {
		return c.Refiner.Refine(policies.BoundaryView{Boundary: 1500, High: policies.Unbounded, Local: local, Next: next, Peers: 1, Successors: 2, QoE: c.QoE})
	}
	want := func(what string, boundary policies.Tokens) {
		t.Helper()
		m.updateProposal()
		if got := m.Proposal().GetBoundary(); got != int64(boundary) {
			t.Errorf("%s: boundary %d, want %d", what, got, boundary)
		}
	}
	view, _ := m.boundaryView(ask)
	means := propose(view.Next)
	want("nothing heard", means)
	long := &api.Summary{Running: 6, Inputs: []int64{1600, 1600, 1600, 9000, 9000, 9000}, Lengths: []int64{1700, 1800, 1900, 20_000, 30_000, 40_000}}
	set, _ := decodeSequences(long)
	both := propose(append(set, set...))
	if both == means {
		t.Fatal("the means give the same boundary: the test shows nothing")
	}
	m.ReceiveSummary("b", long)
	want("one of two successors", both)
	m.ReceiveSummary("c", &api.Summary{})
	want("the other one is idle", propose(set))
	m.ReceiveSummary("c", &api.Summary{Running: 6})
	want("the other one runs requests and does not say which", both)
	for what, bad := range map[string]*api.Summary{
		"a length is missing": {Running: 1, Inputs: []int64{5}}, "shorter than its prompt": {Running: 1, Inputs: []int64{5}, Lengths: []int64{4}},
		"a negative prompt": {Running: 1, Inputs: []int64{-5}, Lengths: []int64{4}}, "too long": {Running: 1, Inputs: []int64{5}, Lengths: []int64{1 << 41}},
		"too many": {Running: 1, Inputs: make([]int64, maxRunning+1), Lengths: make([]int64, maxRunning+1)},
	} {
		before := m.Status().Ignored
		m.ReceiveSummary("b", bad)
		if m.Status().Ignored != before+1 {
			t.Errorf("%s: not ignored", what)
		}
		want(what, both)
	}
}

// TestSummariesToNeighbours checks who gets this replica's load, and that only the stage before
// gets its running requests.
func TestSummariesToNeighbours(t *testing.T) {
	for _, refines := range []bool{false, true} {
		c := good(frontend.LocalLeg{Request: policies.Request{ID: "q", Input: 100, Output: 11}, Last: time.Now()})
		sent := make(map[policies.ReplicaID]*api.Summary)
		c.Network = network(func(to policies.ReplicaID, e *api.Envelope) { sent[to] = e.GetSummary() })
		if refines {
			c.Refiner, c.QoE = partition.PaperRefiner{}, policies.QoE{D0: 1}
		}
		m := testkit.Must(New(c))
		v := View{Plan: policies.Plan{Model: "m", Stages: []policies.Stage{
			{High: 10, Replicas: []policies.ReplicaID{"before"}}, {Low: 10, High: 20, Replicas: []policies.ReplicaID{"a", "peer"}}, {Low: 20, High: policies.Unbounded, Replicas: []policies.ReplicaID{"after"}},
		}}}
		for _, id := range []policies.ReplicaID{"a", "before", "peer", "after", "joining"} {
			v.Peers = append(v.Peers, policies.Replica{ID: id, Peer: string(id)})
		}
		m.SetView(v)
		m.sendSummaries()
		if len(sent) != 4 {
			t.Errorf("sent to %v", sent)
		}
		for id, s := range sent {
			if got, want := len(s.GetLengths()) == 1 && s.GetInputs()[0] == 100 && s.GetLengths()[0] == 111, refines && id == "before"; got != want {
				t.Errorf("refines %v, %s: inputs %v, lengths %v", refines, id, s.GetInputs(), s.GetLengths())
			}
		}
	}
}

// FuzzSummary shows that the sequences of a peer's summary are refused or valid, and are kept on the wire.
func FuzzSummary(f *testing.F) {
	for _, s := range []*api.Summary{{}, {Running: 1}, {Running: 2, Inputs: []int64{5, 6}, Lengths: []int64{5, 70}}, {Inputs: []int64{5}, Lengths: []int64{-4}}, {Held: -1}, {Held: 1 << 62, Promised: 1 << 62}} {
		f.Add(testkit.Must(proto.Marshal(s)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s api.Summary
		if proto.Unmarshal(b, &s) != nil {
			return
		}
		m, err := New(good())
		testkit.NoError(t, err)
		m.SetView(View{Plan: policies.Plan{Model: "m", Stages: []policies.Stage{{High: 100, Replicas: []policies.ReplicaID{"a"}}, {Low: 100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b"}}}}, Peers: []policies.Replica{{ID: "b", Peer: "b"}}})
		m.ReceiveSummary("b", &s)
		running, _ := m.peers.view.Successors(m.now())
		inputs, lengths := encodeSequences(running)
		if len(running) > maxRunning || !slices.Equal(inputs, s.GetInputs()[:len(inputs)]) || !slices.Equal(lengths, s.GetLengths()[:len(inputs)]) {
			t.Errorf("%v is read as %v", &s, running)
		}
		for _, q := range running {
			if q.Input < 0 || q.Length < q.Input {
				t.Errorf("a request of %d tokens has a prompt of %d", q.Length, q.Input)
			}
		}
		if n := m.Status(); n.Ignored+n.SummariesReceived != 1 || n.Ignored == 1 && m.peers.view.CountFresh(m.now()) > 0 {
			t.Errorf("%v is neither refused nor kept: %+v", &s, n)
		}
	})
}

// network is a Network that calls a function.
type network func(policies.ReplicaID, *api.Envelope)

func (n network) Send(to policies.ReplicaID, e *api.Envelope) { n(to, e) }
