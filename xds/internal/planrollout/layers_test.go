package planrollout

import (
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// view returns a view of model m, and of others that it names: "a@1 b@2" are replicas and
// their addresses, in one stage.
func view(epoch policies.Epoch, text string, models ...resources.Model) resources.View {
	v := resources.View{Models: models}
	p := policies.OneStagePlan("m", nil)
	p.Epoch = epoch
	for _, f := range strings.Fields(text) {
		id, address, _ := strings.Cut(f, "@")
		v.Endpoints = append(v.Endpoints, resources.Endpoint{Replica: policies.Replica{ID: policies.ReplicaID(id), Model: "m", Address: address}})
		p.Stages[0].Replicas = append(p.Stages[0].Replicas, policies.ReplicaID(id))
	}
	for _, m := range models {
		p.Model = m.Name
		v.Plans = append(v.Plans, p)
	}
	return v
}

// endpointsOf lists the replicas and addresses of endpoints, in order.
func endpointsOf(list []resources.Endpoint) string {
	var out []string
	for _, e := range list {
		out = append(out, string(e.ID)+"@"+e.Address)
	}
	return strings.Join(out, " ")
}

// TestUnion checks what live snapshots add to the newest one, and that it is not changed.
func TestUnion(t *testing.T) {
	m, n := resources.Model{Name: "m", Hosts: []string{"x"}}, resources.Model{Name: "n", Hosts: []string{"x", "y"}}
	for name, c := range map[string]struct {
		newest    resources.View
		live      []resources.View
		endpoints string
		models    string
		previous  int
		more      bool
	}{
		"the same":                 {view(2, "a@1 b@2", m), []resources.View{view(1, "b@2 a@1", m)}, "a@1 b@2", "m:x", 0, false},
		"a removed one":            {view(2, "a@1", m), []resources.View{view(1, "a@1 b@2", m)}, "a@1 b@2", "m:x", 1, true},
		"its address is used":      {view(2, "a@1 c@2", m), []resources.View{view(1, "a@1 b@2", m)}, "a@1 c@2", "m:x", 1, true},
		"its id is used":           {view(2, "a@3", m), []resources.View{view(1, "a@1", m)}, "a@3", "m:x", 0, false},
		"two spellings":            {view(2, "a@[::1]:80", m), []resources.View{view(1, "b@[0:0::1]:80", m)}, "a@[::1]:80", "m:x", 1, true},
		"two that were removed":    {view(3, "a@1", m), []resources.View{view(1, "b@2", m), view(2, "b@3 c@2", m)}, "a@1 b@3 c@2", "m:x", 2, true},
		"a removed model":          {view(2, "a@1", m), []resources.View{view(1, "a@1", m, n)}, "a@1", "m:x n:y", 0, true},
		"a model that was removed": {view(3, "a@1", m), []resources.View{view(1, "a@1", m, n), view(2, "a@1", m, n)}, "a@1", "m:x n:y", 0, true},
	} {
		var live []*Snapshot
		for _, v := range c.live {
			live = append(live, &Snapshot{View: v})
		}
		c.newest.Endpoints = slices.Grow(c.newest.Endpoints, 9) // what is appended must not be seen
		c.newest.Plans = slices.Grow(c.newest.Plans, 9)
		u, more := union(c.newest, live)
		var models []string
		for _, m := range u.Models {
			models = append(models, m.Name+":"+strings.Join(m.Hosts, ","))
		}
		if got := endpointsOf(u.Endpoints); got != c.endpoints || strings.Join(models, " ") != c.models || len(u.Previous) != c.previous || more != c.more || len(u.Plans) != len(u.Models) {
			t.Errorf("%s: %q, models %q, %d previous plans, more %v", name, got, models, len(u.Previous), more)
		}
		if n := len(c.newest.Plans); c.newest.Plans[:n+1][n].Model != "" {
			t.Errorf("%s: a plan was appended to those of the newest view", name)
		}
		if len(u.Endpoints) > 0 {
			if u.Endpoints[0].Weight++; c.newest.Endpoints[0].Weight != 0 {
				t.Errorf("%s: the newest view was changed", name)
			}
		}
	}
}

// TestRemovedFrom checks which removed endpoints are still needed, each once.
func TestRemovedFrom(t *testing.T) {
	v := view(1, "a@1 b@[::1]:80", resources.Model{Name: "m"})
	gone := view(1, "a@9 c@1 d@[0::1]:80 e@5 e@6 f@5 g@7", resources.Model{Name: "m"}).Endpoints
	gone[len(gone)-1].Model = "n"
	if got := endpointsOf(removedFrom(v, gone)); got != "e@5" {
		t.Errorf("%q are left, want e@5 alone", got)
	}
}
