package adoption_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// racks is a fleet of nodes with as many replicas each, in an order that says
// nothing.
func racks(nodes, each int) (fleet []policies.Replica) {
	for n := range nodes {
		for i := range each {
			fleet = append(fleet, policies.Replica{ID: policies.ReplicaID(fmt.Sprintf("n%d-%d", n, i)), Host: fmt.Sprint("n", n)})
		}
	}
	slices.Reverse(fleet)
	return fleet
}

// nodesOf counts the replicas of a stage by their node.
func nodesOf(s policies.Stage) map[string]int {
	count := map[string]int{}
	for _, id := range s.Replicas {
		count[string(id[:2])]++
	}
	return count
}

// TestStagesSpreadOverNodes divides one stage in every way: a stage with as many
// replicas as there are nodes, or more, is on all of them, and none has two more of
// a stage than another. Nothing moves. Then the cut moves on, and that stays so.
func TestStagesSpreadOverNodes(t *testing.T) {
	const nodes, each = 4, 4
	fleet := racks(nodes, each)
	inOrder := ids(fleet) // node by node, as in a fleet file
	slices.Reverse(inOrder)
	for _, one := range []policies.Plan{
		assign(policies.Plan{}, policies.Partition{Counts: []int{len(fleet)}}, fleet), policies.OneStagePlan("m", inOrder),
	} {
		for k := 1; k < len(fleet); k++ {
			p := policies.Partition{Cuts: []policies.Tokens{1000}, Counts: []int{k, len(fleet) - k}}
			plan := assign(one, p, fleet)
			if n := adoption.CountMoves(one, plan); n != 0 {
				t.Errorf("%d: %d moved", k, n)
			}
			if again := assign(plan, p, fleet); fmt.Sprint(again) != fmt.Sprint(plan) {
				t.Errorf("%d: asked again, %v became %v", k, plan, again)
			}
			next := assign(plan, policies.Partition{Cuts: []policies.Tokens{500, 2000}, Counts: []int{max(1, k/2), len(fleet) - max(1, k/2) - 1, 1}}, fleet)
			for _, s := range append(plan.Stages, next.Stages...) {
				count := slices.Collect(maps.Values(nodesOf(s)))
				if want := min(nodes, len(s.Replicas)); len(count) != want || slices.Max(count) > slices.Min(count)+1 {
					t.Errorf("%d of %d: the stage of %v is on the nodes %v, not evenly on %d", k, len(fleet), s.Replicas, nodesOf(s), want)
				}
			}
		}
	}
}

// bridges is a map of racks(nodes, each) in which two replicas of a node, 0 and 1, 2
// and 3, …, are joined by NVLink, and nothing else is near.
func bridges(fleet []policies.Replica) *links.CostMap {
	c := links.CostMapConfig{TokenBytes: 1e5, Rates: links.Rates{SameHost: 1e9, BetweenHosts: 1e9}}
	for _, r := range fleet {
		var number int
		fmt.Sscanf(string(r.ID[3:]), "%d", &number)
		g := &links.GPU{Index: number, Address: fmt.Sprint("g", number), Peers: []links.Peer{
			{Index: number ^ 1, Address: fmt.Sprint("g", number^1), NVLinks: links.Bundle{Links: 4, Rate: 1e11}, Asked: true, Read: true, NVLink: true},
		}}
		c.Replicas = append(c.Replicas, links.Endpoint{ID: r.ID, Topology: links.Topology{Host: r.Host, Known: true, GPU: g}})
	}
	return links.NewCostMap(c)
}

// TestNearStages: who of a node is in which stage follows the links, and the spread
// over the nodes stays what it is without them.
func TestNearStages(t *testing.T) {
	fleet := racks(4, 4)
	know := adoption.Assigner{Map: bridges(fleet)}
	one := assign(policies.Plan{}, policies.Partition{Counts: []int{len(fleet)}}, fleet)
	for k := 1; k < len(fleet); k++ {
		p := policies.Partition{Cuts: []policies.Tokens{1000}, Counts: []int{k, len(fleet) - k}}
		blind, plan := assign(one, p, fleet), know.Assign(one, p, fleet)
		if err := plan.Validate(); err != nil && plan.Model != "" {
			t.Fatal(err)
		}
		for s := range plan.Stages {
			if a, b := slices.Sorted(maps.Values(nodesOf(plan.Stages[s]))), slices.Sorted(maps.Values(nodesOf(blind.Stages[s]))); !slices.Equal(a, b) {
				t.Errorf("%d: the stage is spread %v, %v without links", k, a, b)
			}
		}
		joined := 0
		for _, id := range plan.Stages[0].Replicas {
			other := []byte(id)
			other[3] ^= 1
			if slices.Contains(plan.Stages[1].Replicas, policies.ReplicaID(other)) {
				joined++
			}
		}
		// The most that the sizes and the spread allow.
		most := min(k, len(fleet)-k)
		if joined != most {
			t.Errorf("%d: %d of the first stage have their neighbour in the second, %d could", k, joined, most)
		}
	}
}

// TestHandOversArePriced: of two plans that differ in who is in which stage, the one
// whose stages have joined GPUs is the cheaper, and a machine without a map sees no
// difference.
func TestHandOversArePriced(t *testing.T) {
	fleet := racks(2, 4)
	know := adoption.Assigner{Map: bridges(fleet)}
	one := assign(policies.Plan{Model: "m"}, policies.Partition{Counts: []int{len(fleet)}}, fleet)
	p := policies.Partition{Cuts: []policies.Tokens{1024}, Counts: []int{4, 4}}
	joined := know.Assign(one, p, fleet)
	apart := joined
	apart.Stages = slices.Clone(joined.Stages)
	for s := range apart.Stages { // 0 and 1 of each node, then 2 and 3
		apart.Stages[s].Replicas = nil
		for _, r := range fleet {
			if (r.ID[3] >= '2') == (s == 1) {
				apart.Stages[s].Replicas = append(apart.Stages[s].Replicas, r.ID)
			}
		}
	}
	w := policytest.ChatWorkload(policies.BucketEdges(16384, 1), 8, 0.5, 1)
	w.Transfer = know.Map.NearestTransfer(ids(fleet))
	cost := func(plan policies.Plan, m *links.CostMap) float64 {
		machine, err := adoption.New(adoption.Config{Planner: partition.Exact{}})
		testkit.NoError(t, err)
		return machine.Step(adoption.Input{Plan: plan, Model: "m", Replicas: fleet, Workload: w, Proximity: m}).Present.Cost
	}
	if a, b := cost(joined, know.Map), cost(apart, know.Map); !(a < b) {
		t.Errorf("joined costs %v, apart %v", a, b)
	}
	if a, b := cost(joined, nil), cost(apart, nil); a != b || a <= 0 {
		t.Errorf("without a map joined costs %v, apart %v", a, b)
	}
	// The joined plan costs what everybody's nearest neighbour does.
	if a, b := cost(joined, know.Map), cost(joined, nil); a > b*(1+1e-9) {
		t.Errorf("joined costs %v, the nearest neighbours %v", a, b)
	}
}

func ids(fleet []policies.Replica) (out []policies.ReplicaID) {
	for _, r := range fleet {
		out = append(out, r.ID)
	}
	return out
}

// TestLaterStagesFindEveryHost checks that the first stages take from the host with the
// most replicas left, so that a stage of two is on two hosts, and that a stage takes of each host before it takes two.
func TestLaterStagesFindEveryHost(t *testing.T) {
	for _, c := range []struct {
		hosts, want string
		counts      []int
	}{{"aaab", "a a ab", []int{1, 1, 2}}, {"abbb", "b b ab", []int{1, 1, 2}}, {"abcc", "c a bc", []int{1, 1, 2}}, {"aaaabb", "ab aaab", []int{2, 4}}} {
		var fleet []policies.Replica
		for i, h := range c.hosts {
			fleet = append(fleet, policies.Replica{ID: policies.ReplicaID(fmt.Sprint("r", i)), Model: "m", Host: string(h)})
		}
		plan := assign(policies.OneStagePlan("m", ids(fleet)), policies.Partition{Cuts: []policies.Tokens{100, 200}[:len(c.counts)-1], Counts: c.counts}, fleet)
		var got []string
		for _, s := range plan.Stages {
			hosts := ""
			for _, id := range s.Replicas {
				hosts += string(c.hosts[id[1]-'0'])
			}
			got = append(got, hosts)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("hosts %s: %q, want %q", c.hosts, got, c.want)
		}
	}
}

// pricing is a planner that notes the migrations that a division is priced with.
type pricing struct {
	script
	priced policies.Transfer
}

func (p *pricing) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	if len(counts) == 3 {
		p.priced = w.Transfer
	}
	return p.script.Price(w, cuts, counts)
}

// TestCrossingsWeighTheBoundaries checks that a proposal is priced with the links between its
// stages, each boundary by the requests that cross it, and that this is its cost.
func TestCrossingsWeighTheBoundaries(t *testing.T) {
	fleet := racks(2, 2)
	for i := range fleet {
		fleet[i].Model = "m"
	}
	near := bridges(fleet)
	p := &pricing{script: script{Cuts: []policies.Tokens{100, 1000}, Counts: []int{1, 1, 2}, Best: 50, One: 100, Present: 75, Iterations: []float64{1, 1, 1}}}
	m, err := adoption.New(adoption.Config{Planner: p, Seen: 1, Period: 10})
	testkit.NoError(t, err)
	in := adoption.Input{Model: "m", Replicas: fleet, Proximity: near}
	in.Plan = m.Step(in).Plan
	in.Now = 10
	in.Workload.Flow = policies.NewFlow([]policies.Tokens{0, 100, 1000})
	in.Workload.Flow.Seen = 10
	copy(in.Workload.Flow.Crossings, []float64{0, 9, 1})
	d := m.Step(in)
	if !d.Adopt {
		t.Fatalf("%+v, want the proposal", d)
	}
	if want := near.PlanTransfer(d.Plan, []float64{9, 1}); p.priced != want || want == near.PlanTransfer(d.Plan, nil) {
		t.Errorf("priced with %+v, want %+v", p.priced, want)
	}
	if d.Gain != 0.25 {
		t.Errorf("gain %v, want that of the cost with these links, 0.25", d.Gain)
	}
}
