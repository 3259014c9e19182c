package links

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Member is a replica of a stage, as Improve may change it.
type Member struct {
	ID policies.ReplicaID
	// Origin groups members: only members of equal origin in different stages may change
	// places.
	Origin int
}

const (
	// smallFleet is the largest fleet whose members are compared pair by pair across hosts;
	// in larger fleets they are compared host by host.
	smallFleet = 32
	// maxPerHost is the most members of one host that are compared.
	maxPerHost = 64
	// maxSweeps bounds the passes over all pairs.
	maxSweeps = 8
)

// Improve exchanges members between stages so that migrations cost less. stages are
// short to long; cuts and crossings belong to the boundaries between them, as in
// PlanTransfer. It keeps how many members of each origin a stage has, and never
// spreads a stage less evenly over the hosts: a host fails as a whole, so the spread
// is availability and takes precedence over links.
//
// In a fleet of more than 32 members only members of one host are exchanged: the time
// is linear in the number of hosts, and equal hosts are solved once.
func (m *CostMap) Improve(stages [][]Member, cuts []policies.Tokens, crossings []float64) {
	if len(stages) < 2 || len(cuts) != len(stages)-1 {
		return
	}
	i := improver{m: m, cuts: cuts, weights: make([]float64, len(cuts))}
	var spots []spot
	for s, members := range stages {
		if s < len(cuts) {
			i.weights[s] = weight(crossings, s) / float64(max(1, len(members)))
		}
		for k, member := range members {
			if at, ok := m.locations[member.ID]; ok { // members without a known location stay
				spots = append(spots, spot{s, k, holder{location: at, member: member}})
			}
		}
	}
	before := i.total(spots)
	after := slices.Clone(spots)
	if len(after) <= smallFleet {
		i.improveSmallFleet(after)
	} else {
		i.improveByHost(after)
	}
	if i.total(after) < before {
		for _, s := range after {
			stages[s.stage][s.index] = s.member
		}
	}
}

// improver is the state of one call of Improve.
type improver struct {
	m       *CostMap
	cuts    []policies.Tokens
	weights []float64 // of one sender's migration, by boundary
}

// spot is a place in a stage and its present holder.
type spot struct {
	stage, index int
	holder
}

// holder is the member at a spot, and the index of the spot it came from.
type holder struct {
	location
	member Member
	was    int
}

// swap exchanges the holders of two spots.
func swap(a, b *spot) { a.holder, b.holder = b.holder, a.holder }

// total returns the cost of all migrations, each to the nearest receiver.
func (i *improver) total(spots []spot) float64 {
	of := make([][]policies.ReplicaID, len(i.cuts)+1)
	for _, s := range spots {
		of[s.stage] = append(of[s.stage], s.member.ID)
	}
	sum := 0.0
	for l, cut := range i.cuts {
		t := i.m.receivers(of[l+1], cut).mean(of[l], 0)
		sum += float64(float64(len(of[l])) * i.weights[l] * seconds(t, cut))
	}
	return sum
}

// cost is total for few spots. beyond is the least cost of a receiver on another host,
// by boundary and class; nil if there is none.
func (i *improver) cost(spots []spot, beyond [][]float64) float64 {
	sum := 0.0
	for f := range spots {
		from := &spots[f]
		l := from.stage
		if l == len(i.cuts) {
			continue
		}
		least := math.Inf(1)
		if beyond != nil {
			least = beyond[l][from.class]
		}
		for t := range spots {
			if to := &spots[t]; to.stage == l+1 {
				least = min(least, seconds(i.m.classTransfer(from.class, to.class, from.host == to.host), i.cuts[l]))
			}
		}
		if !math.IsInf(least, 1) {
			sum += float64(i.weights[l] * least)
		}
	}
	return sum
}

// descend swaps pairs of spots of equal origin as long as that makes migrations cheaper.
// keeps reports, after a swap, whether it is allowed.
func (i *improver) descend(spots []spot, beyond [][]float64, keeps func(a, b *spot) bool) {
	now := i.cost(spots, beyond)
	for range maxSweeps {
		better := false
		for x := range spots {
			for y := x + 1; y < len(spots); y++ {
				a, b := &spots[x], &spots[y]
				if a.stage == b.stage || a.member.Origin != b.member.Origin || a.location == b.location {
					continue
				}
				swap(a, b)
				if next := i.cost(spots, beyond); next < now*(1-1e-9) && keeps(a, b) {
					now, better = next, true
				} else {
					swap(a, b)
				}
			}
		}
		if !better {
			return
		}
	}
}

// improveSmallFleet tries all pairs of a small fleet.
func (i *improver) improveSmallFleet(spots []spot) {
	limit := make([]int, len(i.cuts)+1)
	for s := range limit {
		limit[s] = unevenness(spots, s)
	}
	i.descend(spots, nil, func(a, b *spot) bool {
		return a.host == b.host || unevenness(spots, a.stage) <= limit[a.stage] && unevenness(spots, b.stage) <= limit[b.stage]
	})
}

// unevenness returns how many pairs of a stage's members share a host: the fewer, the more
// even.
func unevenness(spots []spot, stage int) (n int) {
	var count [smallFleet]struct {
		node  int32
		count int
	}
	used := 0
	for k := range spots {
		if spots[k].stage != stage {
			continue
		}
		at := 0
		for at < used && count[at].node != spots[k].host {
			at++
		}
		if at == used {
			count[at].node = spots[k].host
			used++
		}
		n += count[at].count
		count[at].count++
	}
	return n
}

// improveByHost tries the pairs of each host of a large fleet.
func (i *improver) improveByHost(spots []spot) {
	beyond := i.cheapestElsewhere(spots)
	slices.SortStableFunc(spots, func(a, b spot) int {
		return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.stage, b.stage), cmp.Compare(a.member.Origin, b.member.Origin), cmp.Compare(a.class, b.class))
	})
	known := map[string][]int{} // the result for hosts that look alike
	var key []byte
	for rest := spots; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].host == rest[0].host {
			n++
		}
		var node []spot
		node, rest = rest[:n], rest[n:]
		if n > maxPerHost || node[0].stage == node[n-1].stage {
			continue
		}
		key = key[:0]
		for _, s := range node {
			key = binary.AppendUvarint(binary.AppendUvarint(binary.AppendVarint(key, int64(s.member.Origin)), uint64(s.stage)), uint64(s.class))
		}
		order, ok := known[string(key)]
		if !ok {
			order = i.bestOrder(node, beyond)
			known[string(key)] = order
		}
		had := slices.Clone(node)
		for k := range node {
			node[k].holder = had[order[k]].holder
		}
	}
}

// bestOrder returns the best order of one host's members: the index of the member for
// each spot.
func (i *improver) bestOrder(node []spot, beyond [][]float64) []int {
	work := slices.Clone(node)
	for k := range work {
		work[k].was = k
	}
	i.descend(work, beyond, func(_, _ *spot) bool { return true })
	order := make([]int, len(work))
	for k := range work {
		order[k] = work[k].was
	}
	return order
}

// cheapestElsewhere returns the least cost of a receiver on another host, by boundary
// and class, as if every class were on another host.
func (i *improver) cheapestElsewhere(spots []spot) [][]float64 {
	n := len(i.m.classes)
	present := make([][]bool, len(i.cuts)+1)
	for s := range present {
		present[s] = make([]bool, n)
	}
	for _, s := range spots {
		present[s.stage][s.class] = true
	}
	out := make([][]float64, len(i.cuts))
	for l := range out {
		out[l] = make([]float64, n)
		for from := range n {
			out[l][from] = math.Inf(1)
			for to, there := range present[l+1] {
				if there {
					out[l][from] = min(out[l][from], seconds(i.m.classTransfer(int32(from), int32(to), false), i.cuts[l]))
				}
			}
		}
	}
	return out
}
