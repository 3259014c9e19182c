package cache_test

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// What streams of both protocols get from the cache is tested in package server.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Short names of the types in the tests below.
const (
	cds = resources.ClusterType
	eds = resources.EndpointType
	rds = resources.RouteType
)

// resource returns a resource whose version changes with content.
func resource(typ, name, content string) *resources.Resource {
	body := []byte(name + content)
	return &resources.Resource{Type: typ, Name: name, Version: resources.Version(body), Body: body}
}

// setOf returns a set of resources such as "eds:x=1".
func setOf(t testing.TB, words ...string) resources.Set {
	t.Helper()
	types := map[string]string{"cds": cds, "eds": eds, "rds": rds, "sec": resources.SecretType}
	var all []*resources.Resource
	for _, w := range words {
		typ, rest, _ := strings.Cut(w, ":")
		name, content, _ := strings.Cut(rest, "=")
		all = append(all, resource(types[typ], name, content))
	}
	return testkit.Must(resources.NewSet(all...))
}

// TestSharedBytes checks that nodes and sets share one encoding.
func TestSharedBytes(t *testing.T) {
	c := cache.New(cache.Config{})
	c.Set("", setOf(t, "eds:x=1"))
	bytesOf := func() *byte {
		out := make(chan gcp.DeltaResponse, 1)
		if _, err := c.CreateDeltaWatch(&gcp.DeltaRequest{TypeUrl: eds}, fixedVersions{names: map[string]struct{}{"x": {}}}, out); err != nil {
			t.Fatal(err)
		}
		m, err := (<-out).GetDeltaDiscoveryResponse()
		testkit.NoError(t, err)
		return &m.Resources[0].Resource.Value[0]
	}
	first := bytesOf()
	c.Set("", setOf(t, "eds:x=1", "eds:y=1")) // encoded again by the caller
	c.Set("g", setOf(t, "eds:x=1"))
	if bytesOf() != first {
		t.Error("unchanged resource has other bytes")
	}
}

// TestAttackHiddenSecrets checks that a node which may not have secrets gets none, neither
// at once nor later, by any protocol; another node does.
func TestAttackHiddenSecrets(t *testing.T) {
	for _, node := range []string{"edge", "stranger"} {
		c := cache.New(cache.Config{SecretsFor: func(node string) bool { return node == "edge" }})
		n, asked := &corev3.Node{Id: node}, fixedVersions{names: map[string]struct{}{"x": {}}}
		c.Set("", setOf(t, "cds:a=1")) // without the secret
		late, lateSotW := make(chan gcp.DeltaResponse, 1), make(chan gcp.Response, 1)
		testkit.Must(c.CreateDeltaWatch(&gcp.DeltaRequest{Node: n, TypeUrl: resources.SecretType, ResponseNonce: "1"}, fixedVersions{names: asked.names, versions: map[string]string{"x": "-"}}, late))
		testkit.Must(c.CreateWatch(&gcp.Request{Node: n, TypeUrl: resources.SecretType}, asked, lateSotW))
		c.Set("", setOf(t, "cds:a=1", "sec:x=1"))
		early, earlySotW := make(chan gcp.DeltaResponse, 1), make(chan gcp.Response, 1)
		testkit.Must(c.CreateDeltaWatch(&gcp.DeltaRequest{Node: n, TypeUrl: resources.SecretType, ResourceNamesSubscribe: []string{"x"}}, asked, early))
		testkit.Must(c.CreateWatch(&gcp.Request{Node: n, TypeUrl: resources.SecretType}, asked, earlySotW))
		got := len(lateSotW) + len(earlySotW)
		for _, out := range []chan gcp.DeltaResponse{late, early} {
			select {
			case r := <-out:
				got += len(testkit.Must(r.GetDeltaDiscoveryResponse()).GetResources())
			default:
			}
		}
		if want := map[string]int{"edge": 4}[node]; got != want {
			t.Errorf("%s got %d secrets, want %d", node, got, want)
		}
	}
}

// TestFollowerIsAnswered checks that a follower which comes back with the plan that it has gets an empty
// response, also if it comes before the first set: so it knows that this control plane serves it.
func TestFollowerIsAnswered(t *testing.T) {
	plan := resource(resources.RoutingType, "cascade", "1")
	set := testkit.Must(resources.NewSet(plan))
	for _, early := range []bool{false, true} {
		c, out := cache.New(cache.Config{}), make(chan gcp.DeltaResponse, 1)
		if !early {
			c.Set("", set)
		}
		has := map[string]string{"cascade": plan.Version}
		testkit.Must(c.CreateDeltaWatch(&gcp.DeltaRequest{TypeUrl: plan.Type, ResourceNamesSubscribe: []string{"cascade"}, InitialResourceVersions: has},
			fixedVersions{names: map[string]struct{}{"cascade": {}}, versions: has}, out))
		if early {
			c.Set("", set)
		}
		if len(out) != 1 {
			t.Fatalf("before the first set %v: no response", early)
		}
		if m := testkit.Must((<-out).GetDeltaDiscoveryResponse()); len(m.Resources)+len(m.RemovedResources) > 0 {
			t.Errorf("before the first set %v: %v", early, m)
		}
	}
}

// fixedVersions is the subscription of a client that has some versions.
type fixedVersions struct {
	names    map[string]struct{}
	versions map[string]string
}

func (h fixedVersions) SubscribedResources() map[string]struct{} { return h.names }
func (h fixedVersions) ReturnedResources() map[string]string     { return h.versions }
func (h fixedVersions) IsWildcard() bool                         { return false }
