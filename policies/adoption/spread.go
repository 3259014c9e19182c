package adoption

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// joiner is the origin of replicas that the previous plan does not have.
const joiner = -1

// assignment holds the stages while replicas are assigned to them.
type assignment struct {
	stages [][]links.Member
	order  map[policies.ReplicaID]int // in which replicas were added
}

func (d *assignment) add(stage int, id policies.ReplicaID, origin int) {
	d.stages[stage] = append(d.stages[stage], links.Member{ID: id, Origin: origin})
	d.order[id] = len(d.order)
}

// replicas lists a stage in the order of addition, joiners last.
func (d *assignment) replicas(stage int) []policies.ReplicaID {
	members := d.stages[stage]
	slices.SortFunc(members, func(a, b links.Member) int {
		return cmp.Or(compareJoiners(a, b), cmp.Compare(d.order[a.ID], d.order[b.ID]))
	})
	ids := make([]policies.ReplicaID, len(members))
	for i, m := range members {
		ids[i] = m.ID
	}
	return ids
}

// compareJoiners orders joiners after all others.
func compareJoiners(a, b links.Member) int {
	switch {
	case (a.Origin == joiner) == (b.Origin == joiner):
		return 0
	case a.Origin == joiner:
		return 1
	}
	return -1
}

// spreadOverHosts spreads the stages over the hosts, one stage after the other. Each
// stage takes from the host of which it has the fewest replicas so far; among equals
// from the host with the most left, so that later stages find every host. The number
// of each origin in a stage does not change.
func (d *assignment) spreadOverHosts(replicas []policies.Replica) {
	nodes := make(map[string]*hostStock)
	home := make(map[policies.ReplicaID]*hostStock, len(replicas))
	for _, r := range replicas {
		if nodes[r.Host] == nil {
			nodes[r.Host] = &hostStock{left: make(map[int][]links.Member)}
		}
		home[r.ID] = nodes[r.Host]
	}
	if len(nodes) < 2 || len(d.stages) < 2 {
		return
	}
	need := make([]map[int]int, len(d.stages)) // by stage and origin
	var list []*hostStock
	for s, members := range d.stages {
		need[s] = make(map[int]int)
		for _, m := range members {
			need[s][m.Origin]++
			n := home[m.ID]
			if n.count == 0 {
				n.first = len(list)
				list = append(list, n)
			}
			n.left[m.Origin] = append(n.left[m.Origin], m)
			n.count++
		}
	}
	for s := range d.stages {
		d.stages[s] = takeMembers(list, need[s], len(d.stages[s]))
	}
}

// hostStock is what a host has left for the remaining stages.
type hostStock struct {
	left  map[int][]links.Member // by origin
	count int
	first int // order of first use
	given int // to the present stage
}

// takeMembers forms a stage with the given number of members of each origin.
func takeMembers(nodes []*hostStock, need map[int]int, size int) []links.Member {
	var origins []int
	for o := range need {
		origins = append(origins, o)
	}
	slices.Sort(origins)
	q := make(hostQueue, 0, len(nodes))
	for _, n := range nodes {
		n.given = 0
		if n.count > 0 {
			q = append(q, n)
		}
	}
	heap.Init(&q)
	out := make([]links.Member, 0, size)
	for len(q) > 0 && len(out) < size {
		n := q[0]
		at := slices.IndexFunc(origins, func(o int) bool { return need[o] > 0 && len(n.left[o]) > 0 })
		if at < 0 {
			heap.Pop(&q) // it has nothing left that this stage needs
			continue
		}
		o := origins[at]
		out = append(out, n.left[o][0])
		n.left[o] = n.left[o][1:]
		need[o]--
		n.given++
		n.count--
		heap.Fix(&q, 0)
	}
	return out
}

// hostQueue orders the hosts by which a stage takes from next.
type hostQueue []*hostStock

func (q hostQueue) Len() int      { return len(q) }
func (q hostQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q hostQueue) Less(i, j int) bool {
	a, b := q[i], q[j]
	return cmp.Or(cmp.Compare(a.given, b.given), cmp.Compare(b.count, a.count), cmp.Compare(a.first, b.first)) < 0
}
func (q *hostQueue) Push(x any) { *q = append(*q, x.(*hostStock)) }
func (q *hostQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}
