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
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// UnroutedHeader marks a local reply of the owner's Envoy: Cascade had no route,
// no cluster or no replica for the request, so no upstream has received it. The
// route to the internal listener retries such a request on the fallback cluster.
const UnroutedHeader = "x-cascade-unrouted"

// retryAfter is the Retry-After of an unrouted request, in seconds. Envoy
// reconnects its xDS streams half a second after Cascade is back.
const retryAfter = "2"

// maxStreams is the circuit breaker limit of the clusters rendered here. The
// clusters that Cascade serves bound the requests of a stage.
const maxStreams = 65536

// connectTimeout bounds a connection attempt to the control plane.
const connectTimeout = time.Second

// EnvoyConfig is what the owner adds to their Envoy's configuration.
type EnvoyConfig struct {
	// Clusters belong to the static clusters or to the owner's CDS.
	Clusters []*clusterv3.Cluster
	// Manager holds fields to merge into the HttpConnectionManager of the listener
	// that is handed over: Rds replaces its route table, and the filters go before
	// the router filter. nil with an internal listener.
	Manager *hcmv3.HttpConnectionManager
	// ConnectionBuffer is the value for per_connection_buffer_limit_bytes of the listener with Manager. See
	// Config.ConnectionBuffer.
	ConnectionBuffer uint32
	// Listener is the internal listener, for the static listeners or the owner's
	// LDS; nil when a whole listener is handed over.
	Listener *listenerv3.Listener
	// Route leads to the internal listener. It goes into a virtual host of the
	// owner's, who may narrow its match. nil when a whole listener is handed over.
	Route *routev3.Route
	// Bootstrap holds fields to merge into Envoy's bootstrap, which only a restart
	// changes: what Envoy may occupy, the extension that internal listeners need, and
	// load reporting.
	Bootstrap *bootstrapv3.Bootstrap
}

// WholeListener renders the configuration that hands over the route table of a
// listener. The listener answers 503 until Cascade has answered Envoy once.
func WholeListener(c Config) (*EnvoyConfig, error) {
	c = c.complete()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	if c.Fallback != "" {
		return nil, fmt.Errorf("attach: fallback %q: only an internal listener can have one; a whole listener has no route table but Cascade's", c.Fallback)
	}
	return &EnvoyConfig{Clusters: []*clusterv3.Cluster{c.controlCluster()}, Manager: c.connectionManager(), ConnectionBuffer: c.ConnectionBuffer(), Bootstrap: c.bootstrap()}, nil
}

// connectionManager returns the fields of an HTTP connection manager that gets its
// routes from Cascade, without the router filter.
func (c Config) connectionManager() *hcmv3.HttpConnectionManager {
	source := resources.SplitConfigSource(c.Cluster, c.FetchTimeout)
	onDemand := resources.Wrap(&ondemandv3.OnDemand{Odcds: &ondemandv3.OnDemandCds{
		Source: source, Timeout: durationpb.New(c.FetchTimeout + clusterTimeoutMargin),
	}})
	m := &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: source, RouteConfigName: c.routeTable()}},
		// Otherwise a client could choose its stage by sending a length.
		EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{resources.StripControlHeaders()},
		LocalReplyConfig:              unroutedReply(),
		Http2ProtocolOptions:          resources.ClientHTTP2Options(),
	}
	resources.NormalizePaths(m)
	if c.EstimatorFilter {
		m.HttpFilters = append(m.HttpFilters, resources.DiscoveredLengthFilter(source))
	}
	m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{
		Name: "envoy.filters.http.on_demand", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: onDemand},
	})
	return m
}

// unroutedReply turns Envoy's local replies to requests without a route (404), a
// cluster, an endpoint or a connection (503) into a 503 with UnroutedHeader.
// Cascade's table has a catch-all, its stages are never empty, and its routes
// retry only requests that no replica has started; so these local replies mean
// that no replica has received the request.
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

// controlCluster returns the cluster of the control planes of a valid configuration.
func (c Config) controlCluster() *clusterv3.Cluster {
	kind := clusterv3.Cluster_STATIC
	if !c.allNumeric() {
		kind = clusterv3.Cluster_STRICT_DNS
	}
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: c.Cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{}}}
	for _, a := range c.Control {
		host, port, _ := splitHostPort(a)
		cla.Endpoints[0].LbEndpoints = append(cla.Endpoints[0].LbEndpoints, endpoint(&corev3.Address{
			Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
			}},
		}))
	}
	out := http2Cluster(c.Cluster)
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: kind}
	out.ConnectTimeout = durationpb.New(connectTimeout)
	out.TransportSocket = c.TransportSocket
	out.LoadAssignment = cla
	return out
}

// bootstrap returns the bootstrap fields that bound Envoy's memory and connections, and those for
// load reporting if it is on.
func (c Config) bootstrap() *bootstrapv3.Bootstrap {
	b := &bootstrapv3.Bootstrap{OverloadManager: resources.OverloadManager()}
	if c.LoadReports {
		services := resources.SplitConfigSource(c.Cluster, c.FetchTimeout).GetApiConfigSource().GetGrpcServices()
		b.ClusterManager = resources.LoadStatsConfig(services)
	}
	return b
}

func http2Cluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name,
		TypedExtensionProtocolOptions: map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": resources.Wrap(resources.HTTP2Options(maxStreams)),
		},
	}
}

func endpoint(a *corev3.Address) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: a}}}
}
