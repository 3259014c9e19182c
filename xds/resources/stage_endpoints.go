package resources

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
)

// Region is the region of every locality; the zone is the endpoint's host.
const Region = "cascade"

// unknownHost is the zone of endpoints without a host.
const unknownHost = "unknown"

// zoneOf returns the zone of an endpoint's locality.
func zoneOf(e Endpoint) string { return cmp.Or(e.Host, unknownHost) }

// MaxDistant is how many distant replicas the assignment of a stage has, at most. A replica
// is distant if every plan has it in a stage, and none of its stages is near (see
// distantToOmit). Whatever changes about a replica is sent again with each assignment that
// has it, to every proxy: with all of 10,000 replicas in each of 8 assignments, one
// replica's health would cost 8 MB a proxy.
const MaxDistant = 256

// stageAssignment returns the ClusterLoadAssignment of stage k: priority 0 is the stage's own
// replicas, priority 1 the next longer stage that has any, whose replicas have room for such lengths
// by definition, priority 2 the replicas in no stage and up to MaxDistant distant ones, and
// priority 3 the prefill replicas; priorities without replicas are left out. A proxy fails
// over from one to the next without a control plane. The assignments of all stages together
// have all replicas.
//
// A stage that no plan uses has replicas of the whole fleet at priority 0, so that it is never
// empty. These, and those of priorities 2 and 3, have equal weights: weights follow the load
// every second, and each change would update the assignments of all stages.
func stageAssignment(model string, k int, plans []policies.Plan, stages stageReplicas, endpoints []Endpoint) *endpointv3.ClusterLoadAssignment {
	own, next := stages.in[k], map[policies.ReplicaID]bool(nil)
	used := slices.ContainsFunc(plans, func(p policies.Plan) bool { return k < len(p.Stages) })
	if at := nextStage(k, stages.nonempty); used && at < policies.MaxStages {
		next = stages.in[at]
	}
	omitted := distantToOmit(k, next, plans, endpoints)
	var tiers [4][]Endpoint
	for _, e := range endpoints {
		tier := 2
		switch {
		case omitted[e.ID]:
			continue
		case own[e.ID] || !used:
			tier = 0
		case next[e.ID]:
			tier = 1
		case e.Prefill:
			tier = 3
		}
		if tier >= 2 || !used {
			e.Weight = 1
		}
		tiers[tier] = append(tiers[tier], e)
	}
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: EndpointName(model, k)}
	priority := uint32(0)
	for _, tier := range tiers {
		if len(tier) == 0 {
			continue // priorities have no gap
		}
		cla.Endpoints = append(cla.Endpoints, localities(tier, priority)...)
		priority++
	}
	return cla
}

// stageReplicas are the replicas of each stage, of any of several plans.
type stageReplicas struct {
	in       [policies.MaxStages]map[policies.ReplicaID]bool
	nonempty [policies.MaxStages]bool // at least one of them has an endpoint
}

// replicasOf returns the replicas of the plans' stages. All replicas of a stage may lack an endpoint: another control
// plane, whose configuration is newer, has made the plan.
func replicasOf(plans []policies.Plan, endpoints []Endpoint) (r stageReplicas) {
	for k := range r.in {
		in := make(map[policies.ReplicaID]bool)
		for _, p := range plans {
			if k < len(p.Stages) {
				for _, id := range p.Stages[k].Replicas {
					in[id] = true
				}
			}
		}
		r.in[k], r.nonempty[k] = in, slices.ContainsFunc(endpoints, func(e Endpoint) bool { return in[e.ID] })
	}
	return r
}

// nextStage returns the stage that serves requests which stage k does not: the next longer one that is not empty. If
// there is none, it is the next shorter one for an empty stage k, and MaxStages, which no stage is, for others.
func nextStage(k int, nonempty [policies.MaxStages]bool) int {
	if i := slices.Index(nonempty[k+1:], true); i >= 0 {
		return k + 1 + i
	}
	for i := k - 1; i >= 0 && !nonempty[k]; i-- {
		if nonempty[i] {
			return i
		}
	}
	return policies.MaxStages
}

// distantToOmit returns the replicas that the assignment of stage k does not have: all distant
// ones but the MaxDistant with the highest ranks. Near are stage k, its next one and, if k is the
// last stage, k−1: a lost last stage has no other neighbour. The ranks depend on k, so that stages
// omit different replicas, and not on health or weights.
func distantToOmit(k int, next map[policies.ReplicaID]bool, plans []policies.Plan, endpoints []Endpoint) map[policies.ReplicaID]bool {
	if len(endpoints) <= MaxDistant {
		return nil
	}
	type ranked struct {
		id   policies.ReplicaID
		rank balance.Rank
	}
	near, staged := make(map[policies.ReplicaID]bool), make(map[policies.ReplicaID]int)
	for _, p := range plans {
		for i, s := range p.Stages {
			isNear := i == k || i == k-1 && k == len(p.Stages)-1
			for _, id := range s.Replicas {
				staged[id]++
				near[id] = near[id] || isNear || next[id]
			}
		}
	}
	var far []ranked
	for _, e := range endpoints {
		if staged[e.ID] == len(plans) && !near[e.ID] {
			far = append(far, ranked{e.ID, balance.RankOf(balance.Mix(uint64(k)+1), balance.Hash(string(e.ID)), 1)})
		}
	}
	if len(far) <= MaxDistant {
		return nil
	}
	slices.SortFunc(far, func(a, b ranked) int {
		switch {
		case a.rank.Above(b.rank):
			return -1
		case b.rank.Above(a.rank):
			return 1
		}
		return strings.Compare(string(a.id), string(b.id))
	})
	out := make(map[policies.ReplicaID]bool, len(far)-MaxDistant)
	for _, r := range far[MaxDistant:] {
		out[r.id] = true
	}
	return out
}

// localities groups the endpoints of one priority by host, sorted by host and id.
func localities(tier []Endpoint, priority uint32) []*endpointv3.LocalityLbEndpoints {
	tier = slices.Clone(tier)
	slices.SortStableFunc(tier, func(a, b Endpoint) int { return strings.Compare(zoneOf(a), zoneOf(b)) })
	var out []*endpointv3.LocalityLbEndpoints
	for i, e := range tier {
		if i == 0 || zoneOf(tier[i-1]) != zoneOf(e) {
			out = append(out, &endpointv3.LocalityLbEndpoints{
				Locality:            &corev3.Locality{Region: Region, Zone: zoneOf(e)},
				Priority:            priority,
				LoadBalancingWeight: wrapperspb.UInt32(0),
			})
		}
		l := out[len(out)-1]
		l.LbEndpoints = append(l.LbEndpoints, lbEndpoint(e))
		// The weight of a locality is the sum of its endpoints', for clients that choose the
		// locality first.
		sum := uint64(l.LoadBalancingWeight.Value) + uint64(e.Weight)
		l.LoadBalancingWeight.Value = uint32(min(sum, math.MaxUint32))
	}
	return out
}

func lbEndpoint(e Endpoint) *endpointv3.LbEndpoint {
	status := corev3.HealthStatus_HEALTHY
	switch e.Health {
	case Draining:
		status = corev3.HealthStatus_DRAINING
	case Unhealthy:
		status = corev3.HealthStatus_UNHEALTHY
	}
	out := endpointAt(netip.MustParseAddrPort(e.Address))
	out.HealthStatus, out.LoadBalancingWeight = status, wrapperspb.UInt32(e.Weight)
	out.Metadata = endpointMetadata(e.ID)
	return out
}

// endpointAt returns an endpoint with nothing but an address.
func endpointAt(a netip.AddrPort) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socketAddress(a)}}}
}
