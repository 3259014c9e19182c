package publish

import (
	"fmt"
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
		for _, e := range v.Endpoints {
			if members[e.ID] || k == 0 && e.Health == resources.Draining { // in no plan any more
				words = append(words, fmt.Sprint(e.ID, ":", map[resources.Health]string{resources.Unhealthy: "!", resources.Draining: "-"}[e.Health], strings.TrimPrefix(fmt.Sprint(e.Weight), "0")))
			}
		}
		slices.Sort(words)
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

// View returns a fleet of one model. Each of the stages is a list of replicas,
// and the cuts are the boundaries between them.
func View(epoch policies.Epoch, cuts []policies.Tokens, stages ...string) resources.View {
	p := policies.Plan{Model: "m", Epoch: epoch}
	v := resources.View{Models: []resources.Model{{Name: "m", Context: 1 << 17}}}
	low := policies.Tokens(0)
	for k, word := range stages {
		st := policies.Stage{Low: low, High: policies.Unbounded}
		if k < len(cuts) {
			st.High = cuts[k]
		}
		low = st.High
		for _, id := range strings.Fields(word) {
			st.Replicas = append(st.Replicas, policies.ReplicaID(id))
			if e := endpoint("m", id); !slices.ContainsFunc(v.Endpoints, func(o resources.Endpoint) bool { return o.ID == e.ID }) {
				v.Endpoints = append(v.Endpoints, e)
			}
		}
		p.Stages = append(p.Stages, st)
	}
	v.Plans = []policies.Plan{p}
	return v
}

// endpoint returns a replica whose address is derived from its id.
func endpoint(model, id string) resources.Endpoint {
	var sum int
	for _, c := range id {
		sum = sum*31 + int(c)
	}
	return resources.Endpoint{
		Replica: policies.Replica{ID: policies.ReplicaID(id), Model: model, Host: fmt.Sprintf("n%d", sum%3), Address: fmt.Sprintf("10.%d.%d.%d:8000", sum>>16&255, sum>>8&255, sum&255)},
	}
}
