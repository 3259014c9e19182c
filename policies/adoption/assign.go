package adoption

import (
	"cmp"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Assign assigns replicas to the stages of a partition, as the successor of the plan
// prev. Draining replicas are left out. How many replicas of a stage go to which new
// stage follows from their order in prev, short to long. Replicas that prev lacks join
// where this moves the fewest others; among equals they join the longest stages.
//
// Which replicas of a stage go is chosen in two steps; neither moves a replica that
// need not move. First, every stage is spread over the hosts as evenly as possible: no
// host is all of a stage of two replicas, and adjacent stages share hosts, so that
// migrations can stay on one. Second, among the equally even choices, one with cheap
// migrations is taken (links.CostMap.Improve). Replicas that are alike keep their
// order: that of prev, then alternating between hosts, then by ID.
//
// With PackHosts, replicas of a stage go in the order of their hosts instead.
//
// The partition's cuts become the plan's. Its counts should add up to the number of
// replicas that are not draining; otherwise the last stages get more or fewer, and the
// plan may be invalid. If prev has no stages, all replicas join. Model and epoch are
// prev's (without a model, that of the first replica); the caller numbers the plan.
func (n Assigner) Assign(prev policies.Plan, p policies.Partition, replicas []policies.Replica) policies.Plan {
	next := policies.Plan{Model: prev.Model, Epoch: prev.Epoch, Stages: make([]policies.Stage, len(p.Counts))}
	if next.Model == "" && len(replicas) > 0 {
		next.Model = replicas[0].Model
	}
	low := policies.Tokens(0)
	for s := range next.Stages {
		high := policies.Unbounded
		if s < len(p.Cuts) {
			high = p.Cuts[s]
		}
		next.Stages[s] = policies.Stage{Low: low, High: high}
		low = high
	}
	stayers, homes, joiners := splitReplicas(prev, replicas)
	if n.PackHosts {
		sortByHost(stayers, homes, joiners, replicas)
	}
	counts := fitCounts(p.Counts, len(stayers)+len(joiners))
	d := assignment{stages: make([][]links.Member, len(counts)), order: make(map[policies.ReplicaID]int, len(replicas))}
	for s, joining := range placeJoiners(prev, next, homes, counts, len(joiners)) {
		old := counts[s] - joining
		for i, id := range stayers[:old] {
			d.add(s, id, homes[i])
		}
		for _, id := range joiners[:joining] {
			d.add(s, id, joiner)
		}
		stayers, homes, joiners = stayers[old:], homes[old:], joiners[joining:]
	}
	if !n.PackHosts {
		d.spreadOverHosts(replicas)
		if n.Map != nil {
			n.Map.Improve(d.stages, p.Cuts, n.crossings(p.Cuts))
		}
	}
	for s := range next.Stages {
		next.Stages[s].Replicas = d.replicas(s)
	}
	return next
}

// CountMoves counts the replicas of both plans that get another range in next. A
// replica keeps its place if its two ranges share at least half of the narrower one,
// in doublings of length: its prefix cache then still matches most of its requests. So
// dividing one stage, or merging neighbours, moves no replica.
func CountMoves(prev, next policies.Plan) int {
	return CountMovesIn(make(map[policies.ReplicaID]policies.Stage), prev, next)
}

// CountMovesIn is CountMoves for frequent calls: it clears and reuses home.
func CountMovesIn(home map[policies.ReplicaID]policies.Stage, prev, next policies.Plan) int {
	clear(home)
	for _, s := range prev.Stages {
		for _, id := range s.Replicas {
			home[id] = s
		}
	}
	n := 0
	for _, s := range next.Stages {
		for _, id := range s.Replicas {
			if old, ok := home[id]; ok && !keepsRange(old, s) {
				n++
			}
		}
	}
	return n
}

// keepsRange reports whether a replica that changes from range a to range b keeps its
// place.
func keepsRange(a, b policies.Stage) bool {
	shared := logWidth(max(a.Low, b.Low), min(a.High, b.High))
	return 2*shared >= min(logWidth(a.Low, a.High), logWidth(b.Low, b.High))
}

// logWidth is the width of a range of lengths in doublings, 0 if it is empty. An open range is as wide as
// an int64 allows; this is sufficient, because of two open ranges one contains the
// other.
func logWidth(low, high policies.Tokens) float64 {
	return max(0, math.Log2((float64(high)+1)/(float64(low)+1)))
}

// splitReplicas divides the replicas that are not draining into those of prev, short
// to long with the index of their stage, and those that join.
func splitReplicas(prev policies.Plan, replicas []policies.Replica) (stayers []policies.ReplicaID, homes []int, joiners []policies.ReplicaID) {
	waiting := make(map[policies.ReplicaID]bool, len(replicas))
	for _, r := range replicas {
		if !r.Draining {
			waiting[r.ID] = true
		}
	}
	for i, s := range prev.Stages {
		for _, id := range s.Replicas {
			if waiting[id] {
				waiting[id] = false
				stayers, homes = append(stayers, id), append(homes, i)
			}
		}
	}
	var joining []policies.Replica
	for _, r := range replicas {
		if waiting[r.ID] {
			waiting[r.ID] = false
			joining = append(joining, r)
		}
	}
	return stayers, homes, alternateHosts(joining)
}

// sortByHost orders the stayers of each stage, and the joiners, by host. Stages that are
// filled in this order are on as few hosts as the moves allow.
func sortByHost(stayers []policies.ReplicaID, homes []int, joiners []policies.ReplicaID, replicas []policies.Replica) {
	host := make(map[policies.ReplicaID]string, len(replicas))
	for _, r := range replicas {
		host[r.ID] = r.Host
	}
	byHost := func(a, b policies.ReplicaID) int { return cmp.Compare(host[a], host[b]) }
	slices.SortStableFunc(joiners, byHost)
	for from := 0; from < len(stayers); {
		to := from
		for to < len(homes) && homes[to] == homes[from] {
			to++
		}
		slices.SortStableFunc(stayers[from:to], byHost)
		from = to
	}
}

// alternateHosts orders replicas by ID and then takes one from each host in turn.
func alternateHosts(replicas []policies.Replica) []policies.ReplicaID {
	slices.SortFunc(replicas, func(a, b policies.Replica) int { return cmp.Compare(a.ID, b.ID) })
	turns := make(map[string]int)
	turn := make(map[policies.ReplicaID]int, len(replicas))
	for _, r := range replicas {
		turn[r.ID] = turns[r.Host]
		turns[r.Host]++
	}
	slices.SortStableFunc(replicas, func(a, b policies.Replica) int {
		return cmp.Or(cmp.Compare(turn[a.ID], turn[b.ID]), cmp.Compare(a.Host, b.Host))
	})
	ids := make([]policies.ReplicaID, len(replicas))
	for i, r := range replicas {
		ids[i] = r.ID
	}
	return ids
}

// fitCounts adjusts counts to add up to total, from the last stage on.
func fitCounts(counts []int, total int) []int {
	out := slices.Clone(counts)
	for s := range out {
		out[s] = min(out[s], total)
		if s == len(out)-1 {
			out[s] = total
		}
		total -= out[s]
	}
	return out
}

// placeJoiners returns how many joiners each stage of next takes, so that the most
// stayers, assigned in order, keep their place. homes are the stayers' stages in prev.
// It takes O(stages · joiners²) at worst.
func placeJoiners(prev, next policies.Plan, homes, counts []int, joiners int) []int {
	// kept[s][i] is how many of the first i stayers keep their place in stage s.
	kept := make([][]int, len(counts))
	for s := range counts {
		kept[s] = make([]int, len(homes)+1)
		home := make([]int, len(prev.Stages)) // 1 if its replicas stay in s
		for h := range home {
			if keepsRange(prev.Stages[h], next.Stages[s]) {
				home[h] = 1
			}
		}
		for i, h := range homes {
			kept[s][i+1] = kept[s][i] + home[h]
		}
	}
	// best[j] is how many stayers keep their place up to a stage if j joiners are placed by
	// then; −1 if that is impossible.
	best := make([]int, joiners+1)
	for j := range best {
		best[j] = -1
	}
	best[0] = 0
	took := make([][]int, len(counts))
	dealt := 0 // replicas in the stages before
	for s, n := range counts {
		took[s] = make([]int, joiners+1)
		now := make([]int, joiners+1)
		for j := range now {
			now[j] = -1
			for take := 0; take <= min(n, j); take++ {
				from, to := dealt-(j-take), dealt-(j-take)+n-take
				if from < 0 || to > len(homes) || best[j-take] < 0 {
					continue
				}
				if v := best[j-take] + kept[s][to] - kept[s][from]; v >= now[j] { // among equals the longer stage takes more
					now[j], took[s][j] = v, take
				}
			}
		}
		best = now
		dealt += n
	}
	out := make([]int, len(counts))
	for s, j := len(counts)-1, joiners; s >= 0; s-- {
		out[s] = took[s][j]
		j -= out[s]
	}
	return out
}
