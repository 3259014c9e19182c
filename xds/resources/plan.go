package resources

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies"
)

// Build renders a view. Equal views give equal sets, byte for byte, whatever the order
// of their slices. The error names the invalid part of the view; the caller then keeps
// its last set.
func Build(v View) (Set, error) {
	v = v.complete()
	if err := v.validate(); err != nil {
		return Set{}, fmt.Errorf("view: %w", err)
	}
	b := new(builder)
	b.add(ListenerType, ListenerName, addressListener(v.Settings))
	ours, theirs := namingFor(adsClient, v.Settings), namingFor(splitEnvoy, v.Settings)
	b.add(RouteType, RouteName, routeConfig(ours, RouteName, v))
	b.addUnlisted(RouteType, SplitRouteName, routeConfig(theirs, SplitRouteName, v))
	b.addRouting(v)
	if v.Settings.EdgeTLS {
		b.addUnlisted(SecretType, EdgeSecret, edgeSecret(v.Edge))
	}
	if v.Settings.Module != nil {
		b.all = append(b.all, v.Settings.Module.resource)
	}
	if v.Settings.LengthService != "" {
		b.add(ClusterType, LengthCluster, serviceCluster(LengthCluster, v.Settings.LengthService, v.Settings))
	}
	if v.Settings.TraceCollector != "" {
		b.add(ClusterType, TraceCluster, serviceCluster(TraceCluster, v.Settings.TraceCollector, v.Settings))
	}
	for _, m := range v.Models {
		plan, _ := v.PlanOf(m.Name)
		plans := []policies.Plan{plan}
		for _, p := range v.Previous {
			if p.Model == m.Name {
				plans = append(plans, p)
			}
		}
		endpoints := slices.DeleteFunc(slices.Clone(v.Endpoints), func(e Endpoint) bool { return e.Model != m.Name })
		federation, stages := namingFor(federatedGRPC, v.Settings), replicasOf(plans, endpoints)
		for k := range policies.MaxStages {
			b.add(ClusterType, ours.cluster(m.Name, k), stageCluster(ours, m.Name, k, v.Settings))
			b.addUnlisted(ClusterType, theirs.cluster(m.Name, k), stageCluster(theirs, m.Name, k, v.Settings))
			b.addUnlisted(ClusterType, federation.cluster(m.Name, k), stageCluster(federation, m.Name, k, v.Settings))
			members := b.add(EndpointType, ours.endpoints(m.Name, k), stageAssignment(m.Name, k, plans, stages, endpoints))
			b.addCopy(members, federation.endpoints(m.Name, k))
		}
		name := SplitModelRouteName(m.Name)
		b.addUnlisted(RouteType, name, modelRouteConfig(theirs, name, m, v))
		for _, y := range [...]naming{ours, federation} {
			b.addUnlisted(ListenerType, y.grpcListener(m.Name), grpcListener(y, m.Name))
			b.addUnlisted(RouteType, y.grpcRoute(m.Name), grpcRouteConfig(y, plan, v.Settings))
		}
	}
	if b.err != nil {
		return Set{}, fmt.Errorf("view: %w", b.err)
	}
	return NewSet(b.all...)
}

// builder collects encoded resources and the first error.
type builder struct {
	all []*Resource
	err error
}

// add encodes a resource and returns it, so that the caller can mark it. After an error
// the resource is empty.
func (b *builder) add(typeURL, name string, m proto.Message) *Resource {
	r, err := Encode(typeURL, name, m)
	if err != nil {
		if b.err == nil {
			b.err = err
		}
		return new(Resource)
	}
	b.all = append(b.all, r)
	return r
}

// addUnlisted adds a resource that is sent only to clients that request it by name.
func (b *builder) addUnlisted(typeURL, name string, m proto.Message) {
	b.add(typeURL, name, m).Unlisted = true
}

// addCopy adds a resource under a second name for clients that request that one. It
// saves the encoding: endpoints are most of a set.
func (b *builder) addCopy(r *Resource, name string) {
	if b.err != nil {
		return
	}
	body := withName(r.Body, name)
	b.all = append(b.all, &Resource{Type: r.Type, Name: name, Version: Version(body), Body: body, Unlisted: true})
}
