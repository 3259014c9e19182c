package client

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	defaultOverprovisioning = 140 // percent
	maxPriority             = 128 // Envoy's largest
)

// Assignment is the endpoints of a cluster, one EDS resource.
type Assignment struct {
	Name       string
	Version    string
	Priorities [][]Endpoint // without gaps; the first is preferred
	// OverprovisioningFactor is how far a priority may shrink before load spills to
	// the next, in percent: at 140, below 71 % available.
	OverprovisioningFactor uint32
}

// Endpoint is one upstream address.
type Endpoint struct {
	Address  string // host:port
	Weight   uint32 // ≥ 1, relative to its locality
	Healthy  bool
	Locality Locality
	// LocalityWeight is the weight of the endpoint's locality, ≥ 1; 1 when EDS gave none.
	LocalityWeight uint32
	Metadata       *corev3.Metadata
}

// Locality says where an endpoint is.
type Locality struct{ Region, Zone, SubZone string }

func decodeAssignment(name string, a *anypb.Any) (any, error) {
	f := new(faults)
	c := openNamed(f, "assignment", "cluster_name", name, a, &endpointv3.ClusterLoadAssignment{}, (*endpointv3.ClusterLoadAssignment).GetClusterName)
	out := newAssignment(f, "assignment", c)
	return out, f.err
}

func newAssignment(f *faults, at string, c *endpointv3.ClusterLoadAssignment) *Assignment {
	out := &Assignment{Name: c.GetClusterName(), OverprovisioningFactor: defaultOverprovisioning}
	if len(c.GetNamedEndpoints()) > 0 {
		f.addf("%s.named_endpoints: not supported by this client", at)
	}
	if p := c.GetPolicy(); p != nil {
		f.only(at+".policy", p, "overprovisioning_factor", "endpoint_stale_after")
		if n := p.GetOverprovisioningFactor().GetValue(); n > 0 {
			out.OverprovisioningFactor = n
		}
	}
	for i, l := range c.GetEndpoints() {
		at := fmt.Sprintf("%s.endpoints[%d]", at, i)
		f.only(at, l, "locality", "lb_endpoints", "load_balancing_weight", "priority", "metadata")
		if l.GetPriority() > maxPriority {
			f.addf("%s.priority: %d is more than %d", at, l.GetPriority(), maxPriority)
			return out
		}
		for len(out.Priorities) <= int(l.GetPriority()) {
			out.Priorities = append(out.Priorities, nil)
		}
		p := &out.Priorities[l.GetPriority()]
		for j, e := range l.GetLbEndpoints() {
			*p = append(*p, newEndpoint(f, fmt.Sprintf("%s.lb_endpoints[%d]", at, j), l, e))
		}
	}
	return out
}

func newEndpoint(f *faults, at string, l *endpointv3.LocalityLbEndpoints, e *endpointv3.LbEndpoint) Endpoint {
	f.only(at, e, "endpoint", "health_status", "metadata", "load_balancing_weight")
	f.only(at+".endpoint", e.GetEndpoint(), "address", "hostname", "health_check_config")
	out := Endpoint{
		Address:        decodeAddress(f, at+".endpoint.address", e.GetEndpoint().GetAddress()),
		Weight:         1,
		LocalityWeight: 1,
		Locality:       Locality{l.GetLocality().GetRegion(), l.GetLocality().GetZone(), l.GetLocality().GetSubZone()},
		Metadata:       e.GetMetadata(),
	}
	if w := e.GetLoadBalancingWeight(); w != nil {
		if out.Weight = w.GetValue(); out.Weight == 0 {
			f.addf("%s.load_balancing_weight: must be at least 1", at)
		}
	}
	if w := l.GetLoadBalancingWeight(); w != nil {
		out.LocalityWeight = max(w.GetValue(), 1)
	}
	switch e.GetHealthStatus() {
	case corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_HEALTHY, corev3.HealthStatus_DEGRADED:
		// Degraded hosts serve here like healthy ones; Envoy keeps them for
		// when the others do not suffice.
		out.Healthy = true
	}
	return out
}
