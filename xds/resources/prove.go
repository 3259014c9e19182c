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
)

// Prove reports the first reason why a set must not be served, or nil. It
// reads nothing but the encoded resources, so that it holds whoever made
// them. What it proves:
//
//   - every message satisfies the constraints of its own definition, and is
//     stored under the name that it carries;
//   - in every virtual host the ranges of a model start at 0, touch, are not
//     empty and end open, and routes without a range go to the last stage, so
//     that no request is without a stage; a host of several models answers
//     what names none of them with an error;
//   - every route leads to a cluster that exists and has endpoints, has no
//     timeout (0s) and has an idle timeout; in the proxies' table it is
//     retried elsewhere before the first byte;
//   - every model has a cluster and endpoints for each of MaxStages stages,
//     with room for 10,000 requests, ejection of up to all endpoints, and
//     HTTP/2;
//   - endpoints: priorities without gaps, each address once, every locality
//     named, every weight at least 1, and the next longer stage right behind
//     the stage itself;
//   - the listener strips what only Cascade may set, before routing, and the
//     certificate that it takes by SDS is there; what proxies run themselves
//     fails open.
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

// proof holds the decoded set. Its messages are the Prover's: nobody changes
// them.
type proof struct {
	prover      *Prover
	facts       map[resourceKey]*fact // of every resource
	clusters    map[string]*clusterv3.Cluster
	assignments map[string]*endpointv3.ClusterLoadAssignment
	routes      map[string]*routev3.RouteConfiguration
	listeners   []*listenerv3.Listener
	copies      map[string]bool // assignments that are another one under a second name
}

// resourceKey is where a resource is in its set.
type resourceKey struct{ typ, name string }

// decode unmarshals every resource, checks it against its own constraints and
// files it.
func (p *proof) decode(s Set) error {
	for _, typ := range s.Types() {
		for _, r := range s.All(typ) {
			f, known := p.prover.fact(r)
			if !known {
				if r.Version != Version(r.Body) {
					return fmt.Errorf("%s %q: version %q is not its content's hash", shortType(typ), r.Name, r.Version)
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

// read unmarshals a resource and checks what it says of itself.
func read(r *Resource) (proto.Message, error) {
	m, err := (&anypb.Any{TypeUrl: r.Type, Value: r.Body}).UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", shortType(r.Type), r.Name, err)
	}
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return nil, fmt.Errorf("%s %q: %w", shortType(r.Type), r.Name, err)
		}
	}
	if name := nameOf(m); name != r.Name {
		return nil, fmt.Errorf("%s %q is stored as %q", shortType(r.Type), name, r.Name)
	}
	if c, ok := m.(*corev3.TypedExtensionConfig); ok {
		if err := proveExtension(r, c); err != nil {
			return nil, fmt.Errorf("%s %q: %w", shortType(r.Type), r.Name, err)
		}
	}
	return m, nil
}

// fileCopy files the endpoints of a federated cluster if they are, byte for byte,
// those of the same stage under its other name: endpoints are most of a set, and
// one proof holds for both.
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
	// Plain names sort before those of federation, so the twin is decoded.
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

// nameOf is the name that a resource's message carries.
func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		return m.ClusterName
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}
