package cache_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
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
	lds = resources.ListenerType
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
	s, err := resources.NewSet(all...)
	testkit.NoError(t, err)
	return s
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
		got := len(testkit.Must(c.Fetch(t.Context(), &gcp.Request{Node: n, TypeUrl: resources.SecretType, ResourceNames: []string{"x"}})).GetReturnedResources())
		for _, out := range []chan gcp.DeltaResponse{late, early} {
			select {
			case r := <-out:
				got += len(testkit.Must(r.GetDeltaDiscoveryResponse()).GetResources())
			default:
			}
		}
		got += len(lateSotW) + len(earlySotW)
		if want := map[string]int{"edge": 5}[node]; got != want {
			t.Errorf("%s got %d secrets, want %d", node, got, want)
		}
	}
}

func TestFetch(t *testing.T) {
	c := cache.New(cache.Config{})
	req := &discoveryv3.DiscoveryRequest{TypeUrl: eds, ResourceNames: []string{"x"}}
	r, err := c.Fetch(t.Context(), req)
	if err != nil || len(r.GetReturnedResources()) != 0 {
		t.Fatal(r, err)
	}
	c.Set("", setOf(t, "eds:x=1", "eds:y=1"))
	if r, err = c.Fetch(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if got := slices.Collect(maps.Keys(r.GetReturnedResources())); !slices.Equal(got, []string{"x"}) {
		t.Fatal(got)
	}
	if got, want := r.GetResponseVersion(), cache.Digest([]*resources.Resource{resource(eds, "x", "1")}); got != want {
		t.Errorf("version %q, want %q", got, want)
	}
	req.VersionInfo = r.GetResponseVersion()
	if r, err := c.Fetch(t.Context(), req); err == nil {
		t.Fatal("resource sent again", r)
	}
}
