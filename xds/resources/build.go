package resources

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies"
)

// Build renders a view. Equal views give equal sets, down to the bytes,
// whatever the order of their slices. The error names the part of the view
// that is wrong; nothing is rendered then, and the caller keeps its last set.
func Build(v View) (Set, error) {
	v = v.complete()
	if err := v.validate(); err != nil {
		return Set{}, fmt.Errorf("view: %w", err)
	}
	b := new(builder)
	b.add(ListenerType, ListenerName, addressListener(v.Settings))
	b.add(RouteType, RouteName, routeConfig(v))
	if v.Settings.Length != "" {
		b.add(ClusterType, LengthCluster, serviceCluster(LengthCluster, v.Settings.Length, v.Settings))
	}
	if v.Settings.Trace != "" {
		b.add(ClusterType, TraceCluster, serviceCluster(TraceCluster, v.Settings.Trace, v.Settings))
	}
	for _, m := range v.Models {
		plan := planOf(v, m.Name)
		plans := []policies.Plan{plan}
		for _, p := range v.Previous {
			if p.Model == m.Name {
				plans = append(plans, p)
			}
		}
		endpoints := slices.DeleteFunc(slices.Clone(v.Endpoints), func(e Endpoint) bool { return e.Model != m.Name })
		for k := range policies.MaxStages {
			b.add(ClusterType, ClusterName(m.Name, k), stageCluster(m.Name, k, v.Settings))
			b.add(EndpointType, EndpointName(m.Name, k), assignment(m.Name, k, plans, endpoints))
		}
		b.add(ListenerType, GRPCListenerName(m.Name), grpcListener(m.Name)).Unlisted = true
		b.add(RouteType, GRPCRouteName(m.Name), grpcRouteConfig(plan, v.Settings)).Unlisted = true
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

// add encodes a resource and returns it for the caller to mark. After an
// error the resource is empty.
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
