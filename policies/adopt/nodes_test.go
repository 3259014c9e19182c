package adopt_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adopt"
)

// racks is a fleet of nodes with as many replicas each, in an order that says
// nothing.
func racks(nodes, each int) (fleet []policies.Replica) {
	for n := range nodes {
		for i := range each {
			fleet = append(fleet, policies.Replica{ID: policies.ReplicaID(fmt.Sprintf("n%d-%d", n, i)), Node: fmt.Sprint("n", n)})
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
// a stage than another. Then the cut moves on, and that stays so.
func TestStagesSpreadOverNodes(t *testing.T) {
	const nodes, each = 4, 4
	fleet := racks(nodes, each)
	one := adopt.Assign(policies.Plan{}, policies.Partition{Counts: []int{len(fleet)}}, fleet)
	for k := 1; k < len(fleet); k++ {
		plan := adopt.Assign(one, policies.Partition{Cuts: []policies.Tokens{1000}, Counts: []int{k, len(fleet) - k}}, fleet)
		next := adopt.Assign(plan, policies.Partition{Cuts: []policies.Tokens{500, 2000}, Counts: []int{max(1, k/2), len(fleet) - max(1, k/2) - 1, 1}}, fleet)
		for _, s := range append(plan.Stages, next.Stages...) {
			count := nodesOf(s)
			if want := min(nodes, len(s.Replicas)); len(count) != want {
				t.Errorf("%d of %d: the stage of %v is on %d nodes, not %d", k, len(fleet), s.Replicas, len(count), want)
			}
			for _, a := range count {
				for _, b := range count {
					if a > b+1 {
						t.Errorf("%d of %d: the stage of %v is on one node more than on another: %v", k, len(fleet), s.Replicas, count)
					}
				}
			}
		}
	}
}
