package publish

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

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
			v.Endpoints = append(v.Endpoints, endpoint("m", id))
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
