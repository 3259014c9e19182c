package resources_test

import (
	"net/url"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// named returns fleet under another model name, attached through another cluster.
func named(model, xds string) resources.View {
	v := fleet()
	v.Models[0].Name, v.Plans[0].Model, v.Settings.XDSCluster = model, model, xds
	for i := range v.Endpoints {
		v.Endpoints[i].Model = model
	}
	return v
}

// TestSpellings checks for several names of models and of a host's cluster that the
// resources for all three client kinds exist, are read back as the same stages, and
// pass the proof.
func TestSpellings(t *testing.T) {
	for _, c := range []struct{ model, xds string }{
		{"m", ""}, {"org/m", "host-xds"}, {"org/m/s0/rr", "a/b"}, {"s1", "rr"}, {"rr", "s0"}, {"grpc", "split"}, {"split", "grpc"},
		{"a b?c#d%2Fe", "x y%"}, {"/", "/"}, {"//x", "cascade"}, {"ö", "ö"},
	} {
		s := build(t, named(c.model, c.xds))
		if err := prove(t, s); err != nil {
			t.Errorf("%q through %q: %v", c.model, c.xds, err)
			continue
		}
		if got, want := s.Len(resources.ClusterType), 3*policies.MaxStages; got != want {
			t.Errorf("%q through %q: %d clusters, want %d", c.model, c.xds, got, want)
		}
		for _, typ := range s.Types() {
			for _, r := range s.All(typ) {
				if !federated(r) {
					continue
				}
				// gRPC decodes and encodes names before it compares them.
				u, err := url.Parse(r.Name)
				if err != nil {
					t.Errorf("%q: %v", r.Name, err)
					continue
				}
				if again := (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String(); again != r.Name {
					t.Errorf("%q is not canonical: %q", r.Name, again)
				}
				if want := strings.TrimPrefix(typ, "type.googleapis.com/"); !strings.HasPrefix(u.Path, "/"+want+"/") {
					t.Errorf("%q does not name its type", r.Name)
				}
			}
		}
	}
}

// TestSpellingsAgree checks that the resources of one plan for different client kinds
// differ only in names and sources.
func TestSpellingsAgree(t *testing.T) {
	s := build(t, fleet())
	for k := range policies.MaxStages {
		plain := message(t, s.Get(resources.EndpointType, resources.EndpointName("org/m", k))).(*endpointv3.ClusterLoadAssignment)
		other := message(t, s.Get(resources.EndpointType, resources.FederatedEndpointName("org/m", k))).(*endpointv3.ClusterLoadAssignment)
		other.ClusterName = plain.ClusterName
		if !proto.Equal(plain, other) {
			t.Errorf("stage %d: federated endpoints differ", k)
		}
		want := message(t, s.Get(resources.ClusterType, resources.ClusterName("org/m", k))).(*clusterv3.Cluster)
		for _, name := range []string{resources.SplitClusterName("org/m", k, resources.XDSCluster), resources.FederatedClusterName("org/m", k)} {
			c := message(t, s.Get(resources.ClusterType, name)).(*clusterv3.Cluster)
			c.Name, c.EdsClusterConfig = want.Name, want.EdsClusterConfig
			if !proto.Equal(c, want) {
				t.Errorf("%s differs", name)
			}
		}
	}
	// The tables of the fleet match the same requests, apart from the names of
	// clusters. What is refused passes no filter of Cascade's.
	want := message(t, s.Get(resources.RouteType, resources.RouteName)).(*routev3.RouteConfiguration)
	got := message(t, s.Get(resources.RouteType, resources.SplitRouteName)).(*routev3.RouteConfiguration)
	got.Name = want.Name
	for _, vh := range got.VirtualHosts {
		for _, r := range vh.Routes {
			a := r.GetRoute()
			if a == nil {
				r.TypedPerFilterConfig = want.VirtualHosts[0].Routes[0].TypedPerFilterConfig
				continue
			}
			a.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: strings.TrimSuffix(a.GetCluster(), "/"+resources.XDSCluster)}
		}
	}
	if !proto.Equal(got, want) {
		t.Error("the split table differs")
	}
	for _, typ := range s.Types() {
		for _, r := range s.All(typ) {
			if r.Unlisted == (r.Type != resources.EndpointType || federated(r)) || !split(r) && !federated(r) {
				continue
			}
			t.Errorf("%s %s: unlisted is %v", typ, r.Name, r.Unlisted)
		}
	}
}
