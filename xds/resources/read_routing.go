package resources

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/api"
)

// ReadRouting decodes the plan of a follower. It is the inverse of Build. The error names
// the first field that breaks a rule, and the rule; the follower then keeps its last plan.
func ReadRouting(m *api.Routing) (*Routing, error) {
	out := &Routing{Epoch: policies.Epoch(m.GetEpoch())}
	if len(m.GetModels()) == 0 {
		return nil, fmt.Errorf("models: must not be empty; a fleet serves at least one model")
	}
	names, hosts, addresses := make(map[string]bool), make(map[string]string), make(map[string]string)
	for i, rm := range m.GetModels() {
		at := fmt.Sprintf("models[%d] %q", i, rm.GetName())
		model, err := readModel(rm, addresses)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if names[model.Model] {
			return nil, fmt.Errorf("%s: name: occurs twice; a model has one entry", at)
		}
		names[model.Model] = true
		for _, h := range model.Hosts {
			if other, twice := hosts[h]; twice {
				return nil, fmt.Errorf("%s: hosts: %q also belongs to %q; a host name selects one model", at, h, other)
			}
			hosts[h] = model.Model
		}
		out.Models = append(out.Models, model)
	}
	var err error
	if out.Proxy, err = readProxySettings(m.GetProxy()); err != nil {
		return nil, fmt.Errorf("proxy.%w", err)
	}
	return out, nil
}

// readModel decodes a model; addresses are the ids of replicas by their addresses so far.
func readModel(m *api.RoutedModel, addresses map[string]string) (out RoutedModel, err error) {
	out.LengthMeta = LengthMeta{Model: m.GetName(), BytesPerToken: length.Ratio(m.GetBytesPerToken())}
	switch {
	case m.GetName() == "":
		return out, fmt.Errorf("name: must not be empty")
	case out.BytesPerToken.Clamp() != out.BytesPerToken:
		return out, fmt.Errorf("bytes_per_token: %d must be %d to %d thousandths", m.GetBytesPerToken(),
			length.MinRatio, length.MaxRatio)
	}
	for _, h := range m.GetHosts() {
		if h == "" {
			return out, fmt.Errorf("hosts: must not hold an empty name")
		}
		out.Hosts = append(out.Hosts, strings.ToLower(h))
	}
	out.Plan = policies.Plan{Model: m.GetName(), Epoch: policies.Epoch(m.GetEpoch())}
	out.Plan.Stages = make([]policies.Stage, len(m.GetStages()))
	for k, s := range m.GetStages() {
		st := &out.Plan.Stages[k]
		if st.High = policies.Tokens(s.GetHigh()); k > 0 {
			st.Low = out.Plan.Stages[k-1].High
		}
		for _, id := range s.GetAbsent() {
			st.Replicas = append(st.Replicas, policies.ReplicaID(id))
		}
	}
	out.Replicas = make([]RoutedReplica, 0, len(m.GetReplicas()))
	for i, r := range m.GetReplicas() {
		replica, err := readReplica(r, m.GetName(), len(out.Plan.Stages))
		if err == nil && i > 0 && r.GetId() <= m.GetReplicas()[i-1].GetId() {
			err = fmt.Errorf("id: must be greater than the previous one")
		}
		if err == nil && addresses[r.GetAddress()] != "" {
			err = fmt.Errorf("address: %s is also the one of %q", r.GetAddress(), addresses[r.GetAddress()])
		}
		if err != nil {
			return out, fmt.Errorf("replicas[%d] %q: %w", i, r.GetId(), err)
		}
		addresses[r.GetAddress()] = r.GetId()
		out.Replicas = append(out.Replicas, replica)
		out.Adapters = append(out.Adapters, replica.Adapters...)
		if replica.Stage >= 0 {
			st := &out.Plan.Stages[replica.Stage]
			st.Replicas = append(st.Replicas, replica.ID)
		}
	}
	for k := range out.Plan.Stages {
		slices.Sort(out.Plan.Stages[k].Replicas)
	}
	slices.Sort(out.Adapters)
	out.Adapters = slices.Compact(out.Adapters)
	return out, out.Plan.Validate()
}

func readReplica(r *api.RoutedReplica, model string, stages int) (out RoutedReplica, err error) {
	out.Stage, out.Weight, out.Health = int(r.GetStage())-1, max(r.GetWeight(), 1), Health(r.GetHealth())
	out.Replica = policies.Replica{
		ID: policies.ReplicaID(r.GetId()), Model: model, Address: r.GetAddress(), Peer: r.GetPeer(),
		Host: r.GetHost(), Adapters: r.GetAdapters(), Prefill: r.GetPrefill(),
		Capacity: policies.Capacity{KV: policies.Tokens(r.GetKv()), Batch: int(r.GetBatch()), TransferRate: r.GetTransferRate()},
	}
	out.Draining = out.Health != Healthy
	switch {
	case r.GetId() == "":
		return out, fmt.Errorf("id: must not be empty")
	case r.GetHealth() < 0 || r.GetHealth() > api.RoutedReplica_UNHEALTHY:
		return out, fmt.Errorf("health: %d must be 0 to %d", r.GetHealth(), Unhealthy)
	case out.Stage >= stages:
		return out, fmt.Errorf("stage: %d must be at most %d, the number of stages", r.GetStage(), stages)
	}
	if out.At, err = hostPort(r.GetAddress()); err != nil {
		return out, err
	}
	if out.Capacity != (policies.Capacity{}) {
		if err := out.Capacity.Validate(); err != nil {
			return out, err
		}
	}
	return out, nil
}

func readProxySettings(p *api.ProxySettings) (out ProxySettings, err error) {
	out = ProxySettings{
		Listen: p.GetListen(), EdgeTLS: p.GetEdgeTls(), ReplicaTLS: p.GetReplicaTls(), AccessLog: p.GetAccessLog(),
		BodyLimit: p.GetBodyLimit(), Origins: p.GetOrigins(),
		MaxRequests: p.GetMaxRequests(),
	}
	for _, d := range [...]struct {
		field string
		from  *durationpb.Duration
	}{
		{"idle_timeout", p.GetIdleTimeout()}, {"connect_timeout", p.GetConnectTimeout()},
		{"ping_timeout", p.GetPingTimeout()},
	} {
		if d.from.CheckValid() != nil || d.from.AsDuration() <= 0 {
			return out, fmt.Errorf("%s: must be a positive duration", d.field)
		}
	}
	out.IdleTimeout, out.ConnectTimeout, out.PingTimeout = p.GetIdleTimeout().AsDuration(),
		p.GetConnectTimeout().AsDuration(), p.GetPingTimeout().AsDuration()
	switch err := validateOrigins(out.Origins); {
	case err != nil:
		return out, err
	case out.BodyLimit <= 0:
		return out, fmt.Errorf("body_limit: %d must be positive", out.BodyLimit)
	case out.MaxRequests == 0:
		return out, fmt.Errorf("max_requests: must be positive")
	}
	return out, nil
}
