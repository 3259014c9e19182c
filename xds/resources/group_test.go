package resources_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func TestGroupOf(t *testing.T) {
	l, err := resources.NewGroups([]resources.GroupRule{
		{Name: "lab", Nodes: []string{"lab-*"}},
		{Name: "eu", Nodes: []string{"x"}, Clusters: []string{"eu-*", "uk"}},
	})
	testkit.NoError(t, err)
	for _, x := range []struct{ id, cluster, want string }{
		{"lab-1", "eu-west", "lab"}, {"a", "eu-west", "eu"}, {"x", "", "eu"}, {"a", "uk", "eu"},
		{"a", "us", ""}, {"", "", ""}, {"lab-1/2", "", ""}, {"lab-1", resources.ObserverCluster, ""},
	} {
		if got := l.GroupOf(x.id, x.cluster); got != x.want {
			t.Errorf("node %q of cluster %q is in %q, want %q", x.id, x.cluster, got, x.want)
		}
	}
	if got := l.Names(); !slices.Equal(got, []string{"lab", "eu", ""}) {
		t.Errorf("names %q", got)
	}
	var all *resources.Groups
	if all.GroupOf("a", "b") != "" || !slices.Equal(all.Names(), []string{""}) {
		t.Error("nil List has more than one group")
	}
}

func TestDefaultIsAnEighth(t *testing.T) {
	l := testkit.Must(resources.NewGroups(nil))
	n := 0
	for i := range 8000 {
		if l.GroupOf(fmt.Sprint("edge-", i), "edge") == resources.Canary {
			n++
		}
	}
	if n < 800 || n > 1200 {
		t.Errorf("%d of 8000 are canaries", n)
	}
	if got := l.Names(); !slices.Equal(got, []string{resources.Canary, ""}) {
		t.Errorf("names %q", got)
	}
}

func TestNewRefuses(t *testing.T) {
	for want, rules := range map[string][]resources.GroupRule{
		"missing name":   {{Nodes: []string{"a"}}},
		"no patterns":    {{Name: "a"}},
		"duplicate name": {{Name: "a", Nodes: []string{"a"}}, {Name: "a", Nodes: []string{"b"}}},
		"pattern":        {{Name: "a", Nodes: []string{"[a"}}},
		"at most":        make([]resources.GroupRule, 65),
		"patterns":       {{Name: "a", Nodes: make([]string, 257)}},
	} {
		if _, err := resources.NewGroups(rules); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one about %s", rules, err, want)
		}
	}
}
