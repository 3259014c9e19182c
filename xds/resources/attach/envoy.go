package attach

import (
	"fmt"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// UnroutedHeader is on an answer that says that Cascade had no route, no
// cluster or no replica for a request, which therefore reached nobody. Only
// the owner's own Envoy sets it: it is how the door's route knows that another
// cluster may have the request.
const UnroutedHeader = "x-cascade-unrouted"

// retryAfter is how many seconds a client whose request was not routed should
// wait: Envoy is back on its streams half a second after Cascade is.
const retryAfter = "2"

// maxStreams is the room of the clusters that are rendered here. What bounds
// the requests of a stage is Cascade's to say.
const maxStreams = 65536

// Connections to the control plane.
const connectTimeout = time.Second

// EnvoyConfig is what the owner of an Envoy adds to their configuration.
type EnvoyConfig struct {
	// Clusters go to the static clusters, or to what the owner's CDS serves.
	Clusters []*clusterv3.Cluster
	// Manager are fields to be merged into the HttpConnectionManager of the
	// listener that is handed over: Rds takes the place of its route table, and
	// the filters go before the router filter. nil for a door.
	Manager *hcmv3.HttpConnectionManager
	// Listener is the door's internal listener; nil without a door. It goes to
	// the static listeners, or to what the owner's LDS serves.
	Listener *listenerv3.Listener
	// Route is a route to the door, for the owner's own virtual host; its match
	// is theirs to narrow. nil without a door.
	Route *routev3.Route
	// Bootstrap are fields to be merged into Envoy's bootstrap, which only a
	// restart changes: the extension that internal listeners need, and load
	// reports. nil where there are none.
	Bootstrap *bootstrapv3.Bootstrap
}

// WholeListener renders what hands the route table of a whole listener over. While
// Cascade has not answered since Envoy's start, the listener answers 503.
func WholeListener(c Config) (*EnvoyConfig, error) {
	c = c.complete()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	if c.Fallback != "" {
		return nil, fmt.Errorf("attach: fallback %q: a listener whose route table is Cascade's has no other; use the door", c.Fallback)
	}
	m, err := c.connectionManager()
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	control, err := c.controlCluster()
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	return &EnvoyConfig{Clusters: []*clusterv3.Cluster{control}, Manager: m, Bootstrap: c.loadReportBootstrap()}, nil
}

// connectionManager are the fields of an HTTP connection manager that takes its routes
// from Cascade, without the router filter.
func (c Config) connectionManager() (*hcmv3.HttpConnectionManager, error) {
	source := resources.SplitConfigSource(c.Cluster, c.FetchTimeout)
	onDemand, err := pack(&ondemandv3.OnDemand{Odcds: &ondemandv3.OnDemandCds{
		Source: source, Timeout: durationpb.New(c.ClusterTimeout),
	}})
	if err != nil {
		return nil, err
	}
	m := &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: source, RouteConfigName: c.routeTable()}},
		// A client's own length would choose its stage.
		EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{resources.StripControlHeaders()},
		LocalReplyConfig:              unroutedReply(),
	}
	if c.EstimatorFilter {
		m.HttpFilters = append(m.HttpFilters, resources.DiscoveredLengthFilter(source))
	}
	m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{
		Name: "envoy.filters.http.on_demand", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: onDemand},
	})
	return m, nil
}

// unroutedReply turns Envoy's own answers to requests without a route (404), a
// cluster, an endpoint or a connection (503) into one that says so. Cascade's
// table has a catch-all, none of its stages is ever empty, and its routes try
// again elsewhere only what nobody has begun: they mean that the request reached
// nobody.
func unroutedReply() *hcmv3.LocalReplyConfig {
	set := func(name, value string) *corev3.HeaderValueOption {
		return &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: name, Value: value},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}
	}
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{{
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR", "NC", "UH", "UF"}},
		}},
		StatusCode:   wrapperspb.UInt32(503),
		HeadersToAdd: []*corev3.HeaderValueOption{set(UnroutedHeader, "1"), set("retry-after", retryAfter)},
	}}}
}

// controlCluster is the cluster of the control planes.
func (c Config) controlCluster() (*clusterv3.Cluster, error) {
	kind := clusterv3.Cluster_STATIC
	if !c.allNumeric() {
		kind = clusterv3.Cluster_STRICT_DNS
	}
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: c.Cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{}}}
	for _, a := range c.Control {
		host, port, err := splitHostPort(a)
		if err != nil {
			return nil, err
		}
		cla.Endpoints[0].LbEndpoints = append(cla.Endpoints[0].LbEndpoints, endpoint(&corev3.Address{
			Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
			}},
		}))
	}
	out, err := http2Cluster(c.Cluster)
	if err != nil {
		return nil, err
	}
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: kind}
	out.ConnectTimeout = durationpb.New(connectTimeout)
	out.TransportSocket = c.TransportSocket
	out.LoadAssignment = cla
	return out, nil
}

// loadReportBootstrap are the load reports, if they are wanted.
func (c Config) loadReportBootstrap() *bootstrapv3.Bootstrap {
	if !c.LoadReports {
		return nil
	}
	services := resources.SplitConfigSource(c.Cluster, c.FetchTimeout).GetApiConfigSource().GetGrpcServices()
	return &bootstrapv3.Bootstrap{ClusterManager: resources.LoadStatsConfig(services)}
}

func http2Cluster(name string) (*clusterv3.Cluster, error) {
	options, err := pack(resources.HTTP2Options(maxStreams))
	if err != nil {
		return nil, err
	}
	return &clusterv3.Cluster{
		Name: name,
		TypedExtensionProtocolOptions: map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options,
		},
	}, nil
}

func endpoint(a *corev3.Address) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: a}}}
}

// pack packs a message into an Any, deterministically.
func pack(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, err
	}
	return a, nil
}
