package client

import (
	"errors"
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
	c, err := open("assignment", a, &endpointv3.ClusterLoadAssignment{})
	if err != nil {
		return nil, err
	}
	if c.GetClusterName() != name {
		return nil, fmt.Errorf("assignment.cluster_name: is %q, not the resource's", c.GetClusterName())
	}
	return newAssignment("assignment", c)
}

func newAssignment(at string, c *endpointv3.ClusterLoadAssignment) (*Assignment, error) {
	out := &Assignment{Name: c.GetClusterName(), OverprovisioningFactor: defaultOverprovisioning}
	if len(c.GetNamedEndpoints()) > 0 {
		return nil, errors.New(at + ".named_endpoints: not supported by this client")
	}
	if p := c.GetPolicy(); p != nil {
		if err := only(at+".policy", p, "overprovisioning_factor", "endpoint_stale_after"); err != nil {
			return nil, err
		}
		if f := p.GetOverprovisioningFactor().GetValue(); f > 0 {
			out.OverprovisioningFactor = f
		}
	}
	for i, l := range c.GetEndpoints() {
		at := fmt.Sprintf("%s.endpoints[%d]", at, i)
		if err := only(at, l, "locality", "lb_endpoints", "load_balancing_weight", "priority", "metadata"); err != nil {
			return nil, err
		}
		if l.GetPriority() > maxPriority {
			return nil, fmt.Errorf("%s.priority: %d is more than %d", at, l.GetPriority(), maxPriority)
		}
		for len(out.Priorities) <= int(l.GetPriority()) {
			out.Priorities = append(out.Priorities, nil)
		}
		p := &out.Priorities[l.GetPriority()]
		for j, e := range l.GetLbEndpoints() {
			ep, err := newEndpoint(fmt.Sprintf("%s.lb_endpoints[%d]", at, j), l, e)
			if err != nil {
				return nil, err
			}
			*p = append(*p, ep)
		}
	}
	return out, nil
}

func newEndpoint(at string, l *endpointv3.LocalityLbEndpoints, e *endpointv3.LbEndpoint) (Endpoint, error) {
	if err := only(at, e, "endpoint", "health_status", "metadata", "load_balancing_weight"); err != nil {
		return Endpoint{}, err
	}
	if err := only(at+".endpoint", e.GetEndpoint(), "address", "hostname", "health_check_config"); e.GetEndpoint() != nil && err != nil {
		return Endpoint{}, err
	}
	address, err := decodeAddress(at+".endpoint.address", e.GetEndpoint().GetAddress())
	if err != nil {
		return Endpoint{}, err
	}
	out := Endpoint{
		Address:        address,
		Weight:         1,
		LocalityWeight: 1,
		Locality:       Locality{l.GetLocality().GetRegion(), l.GetLocality().GetZone(), l.GetLocality().GetSubZone()},
		Metadata:       e.GetMetadata(),
	}
	if w := e.GetLoadBalancingWeight(); w != nil {
		if out.Weight = w.GetValue(); out.Weight == 0 {
			return Endpoint{}, errors.New(at + ".load_balancing_weight: must be at least 1")
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
	return out, nil
}
