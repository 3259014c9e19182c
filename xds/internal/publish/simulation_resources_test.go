package publish

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// The resources of a simulation are short texts, so that one takes a fraction
// of a millisecond.

// textSet renders a view as text: a cluster and its endpoints for every stage
// in use, and a route table with the name of its plan.
func textSet(v resources.View) (resources.Set, error) {
	stages := 0
	for _, p := range append(slices.Clone(v.Plans), v.Previous...) {
		stages = max(stages, len(p.Stages))
	}
	var all []*resources.Resource
	add := func(typ, name, body string) {
		all = append(all, &resources.Resource{Type: typ, Name: name, Version: resources.Version([]byte(typ + name + body)), Body: []byte(body)})
	}
	health := make(map[policies.ReplicaID]resources.Endpoint)
	for _, e := range v.Endpoints {
		health[e.ID] = e
	}
	for k := range stages {
		members := make(map[policies.ReplicaID]bool)
		for _, p := range append(slices.Clone(v.Plans), v.Previous...) {
			if k < len(p.Stages) {
				for _, id := range p.Stages[k].Replicas {
					members[id] = true
				}
			}
		}
		var words []string
		for _, id := range slices.Sorted(maps.Keys(members)) {
			if e, ok := health[id]; ok {
				words = append(words, fmt.Sprintf("%s:%d:%d", id, e.Health, e.Weight))
			}
		}
		add(resources.ClusterType, clusterOf(k), v.Settings.AccessLog)
		add(resources.EndpointType, serviceOfStage(k), strings.Join(words, " "))
	}
	add(resources.ListenerType, resources.ListenerName, "l")
	add(resources.RouteType, resources.RouteName, fmt.Sprint("plan ", v.Plans[0].Epoch))
	return resources.NewSet(all...)
}

func clusterOf(k int) string      { return resources.ClusterName("m", k) }
func serviceOfStage(k int) string { return resources.EndpointName("m", k) }

// serviceOf names the endpoints of a cluster.
func serviceOf(cluster string) string { return strings.TrimSuffix(cluster, "/rr") }

// missingMember describes the first stage of a plan whose endpoints lack a
// member.
func missingMember(p policies.Plan, get func(k int) *resources.Resource) string {
	for k, st := range p.Stages {
		e := get(k)
		if e == nil {
			return fmt.Sprint("stage ", k, " has no endpoints")
		}
		for _, id := range st.Replicas {
			if !strings.Contains(" "+string(e.Body), " "+string(id)+":") {
				return fmt.Sprint("stage ", k, " lacks ", id)
			}
		}
	}
	return ""
}

func formatSet(s resources.Set) string {
	var out []string
	for _, typ := range simTypes {
		for _, r := range s.All(typ) {
			if typ == resources.EndpointType || typ == resources.RouteType {
				out = append(out, fmt.Sprintf("%s=%q %.4s", r.Name, r.Body, r.Version))
			}
		}
	}
	return strings.Join(out, ", ")
}
