package publish

import (
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// oneStage returns a view of model m, and of others that it names: "a@1 b@2" are replicas and
// their addresses, in one stage.
func oneStage(epoch policies.Epoch, text string, models ...resources.Model) resources.View {
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
		"the same":                 {oneStage(2, "a@1 b@2", m), []resources.View{oneStage(1, "b@2 a@1", m)}, "a@1 b@2", "m:x", 0, false},
		"a removed one":            {oneStage(2, "a@1", m), []resources.View{oneStage(1, "a@1 b@2", m)}, "a@1 b@2", "m:x", 1, true},
		"its address is used":      {oneStage(2, "a@1 c@2", m), []resources.View{oneStage(1, "a@1 b@2", m)}, "a@1 c@2", "m:x", 1, true},
		"its id is used":           {oneStage(2, "a@3", m), []resources.View{oneStage(1, "a@1", m)}, "a@3", "m:x", 0, false},
		"two spellings":            {oneStage(2, "a@[::1]:80", m), []resources.View{oneStage(1, "b@[0:0::1]:80", m)}, "a@[::1]:80", "m:x", 1, true},
		"two that were removed":    {oneStage(3, "a@1", m), []resources.View{oneStage(1, "b@2", m), oneStage(2, "b@3 c@2", m)}, "a@1 b@3 c@2", "m:x", 2, true},
		"a removed model":          {oneStage(2, "a@1", m), []resources.View{oneStage(1, "a@1", m, n)}, "a@1", "m:x n:y", 0, true},
		"a model that was removed": {oneStage(3, "a@1", m), []resources.View{oneStage(1, "a@1", m, n), oneStage(2, "a@1", m, n)}, "a@1", "m:x n:y", 0, true},
	} {
		var live []*snapshot
		for _, v := range c.live {
			live = append(live, &snapshot{view: v})
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
	v := oneStage(1, "a@1 b@[::1]:80", resources.Model{Name: "m"})
	gone := oneStage(1, "a@9 c@1 d@[0::1]:80 e@5 e@6 f@5 g@7", resources.Model{Name: "m"}).Endpoints
	gone[len(gone)-1].Model = "n"
	if got := endpointsOf(removedFrom(v, gone)); got != "e@5" {
		t.Errorf("%q are left, want e@5 alone", got)
	}
}

// TestSameExceptHealth checks which changes of a view keep a plan's rollout.
func TestSameExceptHealth(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*resources.View)
		same bool
	}{
		"nothing":          {func(*resources.View) {}, true},
		"health":           {func(v *resources.View) { v.Endpoints[0].Health, v.Endpoints[1].Weight = resources.Unhealthy, 7 }, true},
		"an address":       {func(v *resources.View) { v.Endpoints[0].Address = "10.0.0.9:1" }, false},
		"a host":           {func(v *resources.View) { v.Endpoints[0].Host = "x" }, false},
		"one in no plan":   {func(v *resources.View) { v.Endpoints = v.Endpoints[:3] }, false},
		"one instead":      {func(v *resources.View) { v.Endpoints[3].ID = "e" }, false},
		"members":          {func(v *resources.View) { v.Plans[0].Stages[0].Replicas = []policies.ReplicaID{"a", "d"} }, false},
		"the second model": {func(v *resources.View) { v.Plans = v.Plans[:1] }, false},
		"another model":    {func(v *resources.View) { v.Plans[1].Model = "o" }, false},
	} {
		view := func() resources.View {
			v := View(1, nil, "a b", "c")
			v.Endpoints = append(v.Endpoints, resources.Endpoint{Replica: policies.Replica{ID: "d", Model: "m", Address: "10.0.0.3:1"}})
			v.Plans = append(v.Plans, policies.OneStagePlan("n", nil))
			return v
		}
		other := view()
		c.edit(&other)
		one, two := &snapshot{view: view()}, &snapshot{view: other}
		if got := one.sameExceptHealth(two); got != c.same || two.sameExceptHealth(one) != c.same {
			t.Errorf("%s: same is %v, and %v the other way round", name, got, two.sameExceptHealth(one))
		}
	}
}

// TestHealthOfOthers checks that an endpoint takes over health and weight from itself only,
// not from another one with its id.
func TestHealthOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*resources.Endpoint)
		took bool
	}{
		"itself":          {func(*resources.Endpoint) {}, true},
		"another address": {func(e *resources.Endpoint) { e.Address = "10.0.0.7:1" }, false},
		"another model":   {func(e *resources.Endpoint) { e.Model = "n" }, false},
		"another id":      {func(e *resources.Endpoint) { e.ID = "z" }, false},
	} {
		s, latest := &snapshot{view: View(1, nil, "a b", "c")}, View(1, nil, "a b", "c")
		latest.Endpoints[0].Health, latest.Endpoints[0].Weight = resources.Unhealthy, 9
		c.edit(&latest.Endpoints[0])
		v, changed := s.withHealthOf(latest)
		if took := v.Endpoints[0].Health == resources.Unhealthy && v.Endpoints[0].Weight == 9; took != c.took || changed != c.took {
			t.Errorf("%s: took %v, changed %v", name, took, changed)
		}
		if s.view.Endpoints[0].Health != resources.Healthy {
			t.Errorf("%s: changed the snapshot", name)
		}
	}
}
