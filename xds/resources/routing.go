package resources

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Routing is the plan in force as migrators, endpoint pickers and embedded proxies follow
// it: one resource, so that a follower changes plans in one step. It is immutable.
type Routing struct {
	Epoch  policies.Epoch // of the newest plan
	Models []RoutedModel  // sorted by name; at least one
	Proxy  ProxySettings
}

// RoutedModel is a model with its plan and its replicas.
type RoutedModel struct {
	LengthMeta
	Hosts    []string // in lower case
	Plan     policies.Plan
	Replicas []RoutedReplica // sorted by id
}

// RoutedReplica is a replica with a weight of at least 1. It is Draining unless it is healthy. An
// unknown capacity is zero, so that the replica does not pass Validate.
type RoutedReplica struct {
	Endpoint
	At    netip.AddrPort // Address
	Stage int            // index in the plan; −1: none
}

// ProxySettings are the settings of embedded proxies, as in Settings.
type ProxySettings struct {
	Listen                                   string
	EdgeTLS, ReplicaTLS                      bool
	AccessLog                                string
	BodyLimit                                int64
	Origins                                  []string
	IdleTimeout, ConnectTimeout, PingTimeout time.Duration
	MaxRequests                              uint32
}

// Plans returns the plans of all models, sorted by model.
func (r *Routing) Plans() []policies.Plan {
	out := make([]policies.Plan, len(r.Models))
	for i := range r.Models {
		out[i] = r.Models[i].Plan
	}
	return out
}

// RoutingName returns the name of the resource for a node: observers, which do not route,
// get it without the weights, which change every second.
func RoutingName(nodeCluster string) string {
	if nodeCluster == ObserverCluster {
		return ObserverCluster
	}
	return ListenerName
}

// RoutingEpoch returns the epoch in an encoded plan without decoding its replicas; 0 without
// one. The deterministic encoding has it second.
func RoutingEpoch(body []byte) policies.Epoch {
	const epochField = 2
	rest := withoutName(body)
	num, typ, n := protowire.ConsumeTag(rest)
	if n < 0 || num != epochField || typ != protowire.VarintType {
		return 0
	}
	epoch, n := protowire.ConsumeVarint(rest[n:])
	if n < 0 {
		return 0
	}
	return policies.Epoch(epoch)
}

// addRouting adds the resources of followers.
func (b *builder) addRouting(v View) {
	m := routing(v)
	b.add(RoutingType, m.Name, m)
	m.Name = ObserverCluster
	for _, model := range m.Models {
		for _, r := range model.Replicas {
			r.Weight = 0
		}
	}
	b.add(RoutingType, m.Name, m)
}

// routing renders a completed view.
func routing(v View) *api.Routing {
	s := v.Settings
	out := &api.Routing{Name: ListenerName, Proxy: &api.ProxySettings{
		Listen: s.Listen, EdgeTls: s.EdgeTLS, ReplicaTls: s.ReplicaTLS != ReplicaTLS{}, AccessLog: s.AccessLog,
		BodyLimit: s.BodyLimit, Origins: s.Origins,
		IdleTimeout: durationpb.New(s.IdleTimeout), ConnectTimeout: durationpb.New(s.ConnectTimeout),
		PingTimeout: durationpb.New(s.PingTimeout),
		MaxRequests: s.MaxRequests,
	}}
	for _, m := range v.Models {
		plan, _ := v.PlanOf(m.Name)
		to := &api.RoutedModel{
			Name: m.Name, Hosts: m.Hosts, BytesPerToken: int64(m.BytesPerToken),
			Epoch: uint64(plan.Epoch),
		}
		out.Epoch = max(out.Epoch, to.Epoch)
		stage, known := make(map[policies.ReplicaID]uint32), make(map[policies.ReplicaID]bool)
		for k, st := range plan.Stages {
			for _, id := range st.Replicas {
				stage[id] = uint32(k) + 1
			}
		}
		for _, e := range v.Endpoints {
			if e.Model == m.Name {
				known[e.ID] = true
				to.Replicas = append(to.Replicas, routedReplica(e, stage[e.ID]))
			}
		}
		for _, st := range plan.Stages {
			rs := &api.RoutedStage{High: int64(st.High)}
			for _, id := range st.Replicas {
				if !known[id] {
					rs.Absent = append(rs.Absent, string(id))
				}
			}
			slices.Sort(rs.Absent)
			to.Stages = append(to.Stages, rs)
		}
		out.Models = append(out.Models, to)
	}
	return out
}

func routedReplica(e Endpoint, stage uint32) *api.RoutedReplica {
	return &api.RoutedReplica{
		Id: string(e.ID), Address: e.Address, Peer: e.Peer, Host: e.Host,
		Adapters: slices.Compact(slices.Sorted(slices.Values(e.Adapters))),
		Kv:       int64(e.Capacity.KV), Batch: int64(e.Capacity.Batch), TransferRate: e.Capacity.TransferRate,
		Prefill: e.Prefill, Weight: e.Weight, Health: api.RoutedReplica_Health(e.Health), Stage: stage,
	}
}

// Tiers returns the replicas that a request of a stage may go to, as indices, the preferred ones first: the
// stage's own, those of the next longer stage, which have room for such lengths by definition, the others, and
// those that compute prompts for others. Of each of the last two there are MaxDistant at most, others for each
// stage. Tiers without replicas are left out. The assignments of proxies that route by EDS have the same order,
// except during a rollout: they unite both plans.
func (m *RoutedModel) Tiers(stage int) (out [][]int) {
	var nonempty [policies.MaxStages]bool
	for _, r := range m.Replicas {
		if r.Stage >= 0 {
			nonempty[r.Stage] = true
		}
	}
	next := nextStage(stage, nonempty)
	var tiers [4][]int
	for i, r := range m.Replicas {
		at := 2
		switch {
		case r.Stage == stage:
			at = 0
		case r.Stage == next:
			at = 1
		case r.Prefill:
			at = 3
		}
		tiers[at] = append(tiers[at], i)
	}
	for at, all := range tiers {
		if step := (len(all) + MaxDistant - 1) / MaxDistant; at >= 2 && step > 1 {
			some := make([]int, 0, MaxDistant)
			for i := stage % step; i < len(all); i += step {
				some = append(some, all[i])
			}
			all = some
		}
		if len(all) > 0 {
			out = append(out, all)
		}
	}
	return out
}

// ByHost returns the model that a host name selects, nil if the request must name it. A
// port does not count. As in Envoy, an exact name comes before patterns with a star at the
// start, those before patterns with a star at the end, and longer ones before shorter ones.
func (r *Routing) ByHost(authority string) (model *RoutedModel) {
	if len(r.Models) == 1 {
		return &r.Models[0]
	}
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && strings.IndexByte(authority[i:], ']') < 0 {
		authority = authority[:i]
	}
	name, best := strings.ToLower(authority), 0
	for i := range r.Models {
		for _, pattern := range r.Models[i].Hosts {
			if n := matchHost(pattern, name); n > best {
				model, best = &r.Models[i], n
			}
		}
	}
	return model
}

// matchHost returns how well a pattern matches a host name; 0: not at all. A star stands for
// at least one character.
func matchHost(pattern, name string) int {
	const exact, suffix = 1 << 30, 1 << 20
	switch {
	case pattern == name:
		return exact
	case len(name) < len(pattern):
	case pattern[0] == '*' && strings.HasSuffix(name, pattern[1:]):
		return suffix + len(pattern)
	case strings.HasSuffix(pattern, "*") && strings.HasPrefix(name, pattern[:len(pattern)-1]):
		return len(pattern)
	}
	return 0
}

// ByName returns the model that a request names, directly or by an adapter; nil for an
// unknown name.
func (r *Routing) ByName(name string) *RoutedModel {
	var adapted *RoutedModel
	for i := range r.Models {
		switch m := &r.Models[i]; {
		case m.Model == name:
			return m
		case adapted == nil && m.Serves(name):
			adapted = m
		}
	}
	return adapted
}
