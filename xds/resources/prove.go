package resources

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/xds/api"
)

// Prove returns the first reason why a set must not be served, or nil. It reads only
// the encoded resources, so it holds for sets of any origin. It proves:
//
//   - every message satisfies the constraints of its definition and is stored under
//     its own name;
//   - in every virtual host, the ranges of a model start at 0, are contiguous and not
//     empty, and the last one is open; routes without a range go to the last stage; so
//     every request has a stage. A host of several models answers a request that names
//     none of them with an error;
//   - every route leads to an existing cluster with endpoints, has no timeout (0s) and
//     has an idle timeout; in the proxies' table it is retried on another replica
//     before the first byte;
//   - every model has a cluster and endpoints for each of MaxStages stages, with limits
//     of at least 10,000 requests, ejection of up to all endpoints, and HTTP/2;
//   - endpoints: priorities without gaps, no address twice, a name for every locality,
//     every weight at least 1, and the next longer stage at the next priority;
//   - the plan of followers (Routing) can be read, and so keeps every rule of a plan;
//   - the listener removes headers that only Cascade may set before routing, the
//     certificate that it takes by SDS exists, and extensions that proxies run fail
//     open.
//
// Envoy checks few of these, and acknowledges a table that answers 503.
func Prove(s Set) error { return new(Prover).Prove(s) }

func (v *Prover) prove(s Set) error {
	p := &proof{
		prover:      v,
		facts:       make(map[resourceKey]*fact),
		clusters:    make(map[string]*clusterv3.Cluster),
		assignments: make(map[string]*endpointv3.ClusterLoadAssignment),
		routes:      make(map[string]*routev3.RouteConfiguration),
		copies:      make(map[string]bool),
	}
	for _, step := range [...]func(*proof, Set) error{
		(*proof).decode,
		(*proof).proveAssignments,
		(*proof).proveClusters,
		(*proof).proveRoutes,
		(*proof).proveListeners,
	} {
		if err := step(p, s); err != nil {
			return fmt.Errorf("not provable: %w", err)
		}
	}
	return nil
}

// proof holds the decoded set. Its messages belong to the Prover and are not modified.
type proof struct {
	prover      *Prover
	facts       map[resourceKey]*fact // of every resource
	clusters    map[string]*clusterv3.Cluster
	assignments map[string]*endpointv3.ClusterLoadAssignment
	routes      map[string]*routev3.RouteConfiguration
	listeners   []*listenerv3.Listener
	copies      map[string]bool // assignments that are copies under a second name
}

// resourceKey identifies a resource in its set.
type resourceKey struct{ typ, name string }

// decode unmarshals every resource, checks it against its own constraints and
// files it.
func (p *proof) decode(s Set) error {
	for _, typ := range s.Types() {
		for _, r := range s.All(typ) {
			f, known := p.prover.fact(r)
			if !known {
				if r.Version != Version(r.Body) {
					return fmt.Errorf("%s %q: version %q is not its content's hash", ShortType(typ), r.Name, r.Version)
				}
				p.prover.keep(f)
			}
			p.facts[resourceKey{typ, r.Name}] = f
			if p.fileCopy(s, r) {
				continue
			}
			if f.message == nil {
				m, err := read(r)
				if err != nil {
					return err
				}
				f.message = m
			}
			p.file(f.message)
		}
	}
	return nil
}

// read decodes a resource and checks what follows from it alone.
func read(r *Resource) (proto.Message, error) {
	m, err := (&anypb.Any{TypeUrl: r.Type, Value: r.Body}).UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", ShortType(r.Type), r.Name, err)
	}
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return nil, fmt.Errorf("%s %q: %w", ShortType(r.Type), r.Name, err)
		}
	}
	if name := nameOf(m); name != r.Name {
		return nil, fmt.Errorf("%s %q is stored as %q", ShortType(r.Type), name, r.Name)
	}
	if c, ok := m.(*corev3.TypedExtensionConfig); ok {
		if err := proveExtension(r, c); err != nil {
			return nil, fmt.Errorf("%s %q: %w", ShortType(r.Type), r.Name, err)
		}
	}
	if plan, ok := m.(*api.Routing); ok {
		if _, err := ReadRouting(plan); err != nil {
			return nil, fmt.Errorf("%s %q: %w", ShortType(r.Type), r.Name, err)
		}
		return &api.Routing{Name: plan.Name}, nil // nothing else reads it
	}
	return m, nil
}

// fileCopy stores the endpoints of a federated cluster without another proof if they
// are, byte for byte, those of the same stage under its other name: endpoints are most
// of a set.
func (p *proof) fileCopy(s Set, r *Resource) bool {
	id, ok := federatedID(EndpointType, r.Name)
	if !ok || r.Type != EndpointType {
		return false
	}
	model, k, ok := stageIn(id)
	if !ok {
		return false
	}
	twin := s.Get(EndpointType, EndpointName(model, k))
	if twin == nil || !isCopyNamed(r.Body, twin.Body, r.Name) {
		return false
	}
	// Plain names sort before federated ones, so the original is decoded.
	cla := p.assignments[twin.Name]
	if cla == nil {
		return false
	}
	p.assignments[r.Name] = &endpointv3.ClusterLoadAssignment{ClusterName: r.Name, Endpoints: cla.Endpoints}
	p.copies[r.Name] = true
	return true
}

// file stores a message under the name that it carries.
func (p *proof) file(m proto.Message) {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		p.clusters[m.Name] = m
	case *endpointv3.ClusterLoadAssignment:
		p.assignments[m.ClusterName] = m
	case *routev3.RouteConfiguration:
		p.routes[m.Name] = m
	case *listenerv3.Listener:
		p.listeners = append(p.listeners, m)
	}
}

// nameOf returns the name in a resource's message.
func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		return m.ClusterName
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}
