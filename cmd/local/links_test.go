package local

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adopt"
	"github.com/cascadeinfer/cascade/xds/control"
)

// halves is a planner that wants two stages of equal size, whatever happens.
type halves struct{ cut policies.Tokens }

func (h halves) Partition(w policies.Workload) (policies.Partition, error) {
	return h.Price(w, []policies.Tokens{h.cut}, []int{w.Replicas / 2, w.Replicas - w.Replicas/2})
}

// Price prefers two stages to one, and expects of none that it is fast.
func (halves) Price(_ policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	p := policies.Partition{Cuts: cuts, Counts: counts, Cost: 2 / float64(len(counts)), OneStage: 2}
	for range counts {
		p.Iterations = append(p.Iterations, 1e6)
	}
	return p, nil
}

// growing is requests that outgrow 384 tokens.
func growing(n int, every time.Duration) (out []trace.Request) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		out = append(out, trace.Request{At: time.Duration(i) * every, Input: policies.Tokens(100 + rng.IntN(50)), Output: policies.Tokens(450 + rng.IntN(100))})
	}
	return out
}

// linked runs eight replicas on two machines, whose GPUs 0 and 1, 2 and 3 are joined by
// NVLink, until the planner has divided them and requests have been handed over. It
// returns the second stage, how many hand-overs left a machine, and how many there were.
func linked(t *testing.T, topology ...string) (second []policies.ReplicaID, crossed, total int) {
	const requests = 100
	r := mobile(t, setup{replicas: 8, edit: func(f *config.Fleet) {
		f.Speed = 4
		f.Models[0].Profile = "testdata/linked.json"
		f.Planner = config.Planner{Seen: 1, Period: time.Second}
		f.Migration, f.Topology = config.Migration{Mode: config.MigrationLive}, topology
		for i := range f.Replicas {
			gpu := i % 4
			f.Replicas[i].Node, f.Replicas[i].GPU = string("ab"[i/4]), &gpu
		}
	}, control: func(c *control.Config) {
		c.Rules.Wrap = func(string, adopt.Planner) adopt.Planner { return halves{384} }
	}})
	send := func(n int, every time.Duration) {
		t.Helper()
		run, err := replay.New(replay.Config{Target: r.URL(), Model: llm, Requests: growing(n, every), Speed: r.cfg.Fleet.Speed})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		got, err := run.Run(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got.Failed() > 0 || got.Completed != got.Requests {
			t.Errorf("%d of %d requests failed: %v", got.Failed(), got.Requests, got.Failures)
		}
	}
	send(8, 0) // so that there is something to plan for
	s := r.until("two stages in use", func(s control.Status) bool { return len(s.Models[0].Stages) == 2 && inUse(s, s.Epoch) })
	for _, n := range s.Models[0].Stages[1].Replicas {
		second = append(second, n.ID)
	}
	send(requests, 150*time.Millisecond)
	node := map[policies.ReplicaID]string{}
	for _, n := range r.cfg.Fleet.Fleet.Replicas {
		node[policies.ReplicaID(n.ID)] = n.Node
	}
	done, _ := r.moves()
	for _, m := range done {
		if m.Cause != policies.Growth {
			continue
		}
		total++
		if node[m.From] != node[m.To] {
			crossed++
		}
	}
	return second, crossed, total
}

// TestHandOversStayOnANode: with what the machines' topology says, migrators tell of
// links, adjacent stages get one GPU of each joined pair, and hand-overs mostly stay on
// a machine. Without it stages are spread over the machines all the same, and about half
// of the hand-overs leave one.
func TestHandOversStayOnANode(t *testing.T) {
	second, crossed, total := linked(t, "testdata/bridged.json")
	blind, left, all := linked(t)
	t.Logf("with the topology %v are the second stage, and %d of %d hand-overs left their machine; without, %v and %d of %d", second, crossed, total, blind, left, all)
	for i := 0; i < 8; i += 2 {
		a, b := slices.Contains(second, ids(i)[0]), slices.Contains(second, ids(i + 1)[0])
		if a == b {
			t.Errorf("%v and its neighbour are in one stage: %v is the second", ids(i), second)
		}
	}
	for _, stage := range [][]policies.ReplicaID{second, blind} {
		if on := slices.DeleteFunc(slices.Clone(stage), func(id policies.ReplicaID) bool { return id >= "r4" }); len(stage) != 4 || len(on) != 2 {
			t.Errorf("of %v %d are on the first machine", stage, len(on))
		}
	}
	if total < 40 || all < 40 {
		t.Fatalf("%d and %d hand-overs say little", total, all)
	}
	// Buyers of the own machine are preferred while their load is no more than a request
	// above that of others: how many leave depends on how unequal loads are.
	if 3*crossed*all >= 2*left*total {
		t.Error("the topology does not keep hand-overs on their machines")
	}
}
