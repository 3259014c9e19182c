package resources_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// message returns an empty message of a resource's type.
func message(t testing.TB, r *resources.Resource) proto.Message {
	t.Helper()
	m, err := (&anypb.Any{TypeUrl: r.Type, Value: r.Body}).UnmarshalNew()
	testkit.NoError(t, err)
	return m
}

// aggregated selects the resources of clients that receive everything over ADS.
func aggregated(r *resources.Resource) bool { return !split(r) && !federated(r) }

// split selects the resources for split Envoys, which belong to other owners.
func split(r *resources.Resource) bool {
	return strings.HasSuffix(r.Name, "/split") || strings.HasSuffix(r.Name, "/"+resources.XDSCluster)
}

// federated selects the resources with names for gRPC's federation.
func federated(r *resources.Resource) bool { return strings.HasPrefix(r.Name, "xdstp:") }

// brief leaves out the resources that are alike for all stages.
func brief(of func(*resources.Resource) bool) func(*resources.Resource) bool {
	return func(r *resources.Resource) bool {
		return of(r) && r.Type != resources.EndpointType && (r.Type != resources.ClusterType || strings.Contains(r.Name, "/s0/"))
	}
}

// render prints the chosen resources of a set, with type, name and version.
func render(t testing.TB, s resources.Set, chosen func(*resources.Resource) bool) []byte {
	type entry struct {
		Type, Name, Version string
		Unlisted            bool `json:",omitempty"`
		Resource            json.RawMessage
	}
	var all []entry
	for _, typ := range s.Types() {
		for _, r := range s.All(typ) {
			if !chosen(r) {
				continue
			}
			text := testkit.Must(resources.FormatJSON(message(t, r)))
			all = append(all, entry{r.Type, r.Name, r.Version, r.Unlisted, text})
		}
	}
	out := testkit.Must(json.MarshalIndent(all, "", " "))
	return append(out, '\n')
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	testkit.CompareGolden(t, filepath.Join("testdata", file), got)
}

func TestGolden(t *testing.T) {
	for file, v := range map[string]resources.View{"one-model": fleet(), "two-models": twoModels()} {
		t.Run(file, func(t *testing.T) {
			s := build(t, v)
			golden(t, file+".json", render(t, s, aggregated))
			golden(t, file+".split.json", render(t, s, brief(split)))
			golden(t, file+".federated.json", render(t, s, brief(federated)))
		})
	}
	b := testkit.Must(resources.Bootstrap(resources.BootstrapConfig{NodeID: "edge-1", Zone: "n1"}))
	golden(t, "bootstrap.json", b)
}

// static turns a set into a bootstrap with all resources inline, which envoy --mode
// validate can check.
func static(t testing.TB, s resources.Set) []byte {
	t.Helper()
	raw := testkit.Must(resources.Bootstrap(resources.BootstrapConfig{NodeID: "test"}))
	b := new(bootstrapv3.Bootstrap)
	testkit.NoError(t, protojson.Unmarshal(raw, b))
	for _, r := range s.All(resources.ClusterType) {
		c := message(t, r).(*clusterv3.Cluster)
		if c.GetType() == clusterv3.Cluster_EDS {
			cla := message(t, s.Get(resources.EndpointType, c.EdsClusterConfig.ServiceName)).(*endpointv3.ClusterLoadAssignment)
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
			c.EdsClusterConfig, c.LoadAssignment = nil, cla
		}
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	}
	l := message(t, s.Get(resources.ListenerType, resources.ListenerName)).(*listenerv3.Listener)
	filter := l.FilterChains[0].Filters[0]
	hcm := new(hcmv3.HttpConnectionManager)
	testkit.NoError(t, filter.GetTypedConfig().UnmarshalTo(hcm))
	rc := message(t, s.Get(resources.RouteType, resources.RouteName)).(*routev3.RouteConfiguration)
	rc.ValidateClusters = nil            // the clusters are in the bootstrap, so Envoy can check the routes
	for _, vh := range rc.VirtualHosts { // but for the one that leads to none on purpose
		vh.Routes = slices.DeleteFunc(vh.Routes, func(r *routev3.Route) bool { return r.Name == "cascade/unestimated" })
	}
	hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: rc}
	packed := testkit.Must(anypb.New(hcm))
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
	b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
	return testkit.Must(resources.FormatJSON(b))
}
