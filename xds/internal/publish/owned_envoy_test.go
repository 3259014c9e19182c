package publish_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// ownedEnvoy is an Envoy whose listeners and clusters come from its owner: one
// listener with a virtual host for LLM traffic and one for the rest.
type ownedEnvoy struct {
	*envoytest.Process
	llm, rest *client
}

const (
	llmHost   = "llm.example"
	otherHost = "shop.example"
)

// connectionManager returns the filter chains of an owner's listener with an
// HTTP connection manager.
func connectionManager(t *testing.T, edit func(*hcmv3.HttpConnectionManager)) []*listenerv3.FilterChain {
	t.Helper()
	m := &hcmv3.HttpConnectionManager{StatPrefix: "owner"}
	edit(m)
	if n := len(m.HttpFilters); n == 0 || m.HttpFilters[n-1].Name != resources.RouterFilter().Name {
		m.HttpFilters = append(m.HttpFilters, resources.RouterFilter())
	}
	return []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
		Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packAny(t, m)},
	}}}}
}

func packAny(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	return testkit.Must(anypb.New(m))
}

func anyPort() *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{},
	}}}
}

// ownCluster returns a cluster of the owner with one endpoint.
func ownCluster(t *testing.T, name, address string) *clusterv3.Cluster {
	t.Helper()
	a := testkit.Must(net.ResolveTCPAddr("tcp", address))
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: a.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port)},
				}}},
			}}}},
		}}},
	}
}

// routeTo returns a route of the owner to one of its clusters.
func routeTo(cluster string) *routev3.Route {
	return &routev3.Route{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
	}
}

// lengthFilter returns a filter of the owner that sets a request's length, and clears the route cache.
func lengthFilter(t *testing.T) *hcmv3.HttpFilter {
	const code = `function envoy_on_request(h)
  local tokens = h:headers():get("x-test-tokens")
  if tokens ~= nil then
    h:headers():replace("` + length.TokensHeader + `", tokens)
    h:headers():replace("` + length.ModelHeader + `", "m")
    h:clearRouteCache()
  end
end`
	return &hcmv3.HttpFilter{Name: "envoy.filters.http.lua", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packAny(t, &luav3.Lua{
		DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: code}},
	})}}
}

// startOwnedEnvoy starts the owner's Envoy with what attach adds: a virtual
// host through files in place of the owner's control plane, a whole listener in
// the bootstrap.
func startOwnedEnvoy(t *testing.T, h *attach.EnvoyConfig, shop *backend) *ownedEnvoy {
	t.Helper()
	b := &bootstrapv3.Bootstrap{
		Node:            &corev3.Node{Id: "owner-1", Cluster: "owner"},
		Admin:           &bootstrapv3.Admin{Address: anyPort()},
		StaticResources: new(bootstrapv3.Bootstrap_StaticResources),
	}
	if h.Bootstrap != nil {
		proto.Merge(b, h.Bootstrap)
	}
	clusters := append(slices.Clone(h.Clusters), ownCluster(t, "shop", shop.address))
	rest := &routev3.VirtualHost{Name: "rest", Domains: []string{"*"}, Routes: []*routev3.Route{routeTo("shop")}}
	front := func(hosts ...*routev3.VirtualHost) []*listenerv3.FilterChain {
		return connectionManager(t, func(m *hcmv3.HttpConnectionManager) {
			m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{Name: "owner", VirtualHosts: hosts}}
		})
	}
	names := [2]string{"front", "front"}
	if h.Listener == nil {
		names[0] = "llm"
		b.StaticResources.Listeners = []*listenerv3.Listener{
			{Name: "llm", Address: anyPort(), FilterChains: connectionManager(t, func(m *hcmv3.HttpConnectionManager) {
				m.HttpFilters = append(m.HttpFilters, lengthFilter(t))
				proto.Merge(m, h.Manager)
			})},
			{Name: "front", Address: anyPort(), FilterChains: front(rest)},
		}
		b.StaticResources.Clusters = clusters
	} else {
		llm := &routev3.VirtualHost{Name: "llm", Domains: []string{llmHost}, Routes: []*routev3.Route{h.Route}}
		b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{
			LdsConfig: fileSource(t, h.Listener, &listenerv3.Listener{Name: "front", Address: anyPort(), FilterChains: front(llm, rest)}),
			CdsConfig: fileSource(t, messages(clusters)...),
		}
	}
	text := testkit.Must(resources.FormatJSON(b))
	o := &ownedEnvoy{Process: envoytest.Start(t, envoytest.Config{Bootstrap: string(text)})}
	o.llm, o.rest = o.client(t, names[0], llmHost), o.client(t, names[1], otherHost)
	return o
}

func messages[M proto.Message](list []M) []proto.Message {
	out := make([]proto.Message, len(list))
	for i, m := range list {
		out[i] = m
	}
	return out
}

// fileSource returns a config source of resources in a file.
func fileSource(t *testing.T, list ...proto.Message) *corev3.ConfigSource {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{VersionInfo: "1"}
	for _, m := range list {
		r.Resources = append(r.Resources, packAny(t, m))
	}
	text := testkit.Must(resources.FormatJSON(r))
	path := filepath.Join(t.TempDir(), "resources.json")
	testkit.NoError(t, os.WriteFile(path, text, 0o600))
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: path}},
	}
}

// hostTransport is a transport whose requests name one host.
type hostTransport struct {
	*http.Transport
	host string
}

func (a hostTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = a.host
	return a.Transport.RoundTrip(r)
}

// client returns a client of one of the owner's virtual hosts.
func (o *ownedEnvoy) client(t *testing.T, listener, host string) *client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{"http://" + o.Listener(listener) + "/v1/completions", &http.Client{Transport: hostTransport{transport, host}, Timeout: 20 * time.Second}}
}
