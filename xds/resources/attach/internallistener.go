package attach

import (
	"fmt"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	internalv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Names of the clusters that InternalListener adds.
const (
	InternalCluster = "cascade-internal"
	fallbackCluster = "cascade-or-fallback"
	// FallbackStat is the counter of Envoy for the requests that went to the fallback cluster.
	FallbackStat = "cluster." + fallbackCluster + ".upstream_rq_retry"
)

// Timing of the owner's route to the internal listener.
const (
	// idleTimeout ends a stream without traffic in either direction, as the idle
	// timeout of Cascade's own routes does.
	idleTimeout = 15 * time.Minute
	// The fallback cluster has not been tried yet, so no real backoff is needed.
	fallbackBackoff    = time.Millisecond
	fallbackMaxBackoff = 10 * time.Millisecond
)

// InternalListener renders an internal listener with Cascade's routes and a
// cluster that leads to it. Cascade routes what the owner's routes send to that
// cluster; nothing else changes. With a fallback, a request that Cascade cannot
// route goes to the fallback cluster: Cascade has not answered since Envoy
// started, all its replicas are gone, or a cluster did not arrive in time. No
// upstream has received such a request, so none is served twice.
func InternalListener(c Config) (*EnvoyConfig, error) {
	c = c.complete()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	manager := c.connectionManager()
	manager.StatPrefix = c.Listener
	manager.HttpFilters = append(manager.HttpFilters, resources.RouterFilter())
	// The connection comes from the same Envoy, which has already set the client's
	// address and will set the server header.
	manager.UseRemoteAddress = wrapperspb.Bool(false)
	manager.ServerHeaderTransformation = hcmv3.HttpConnectionManager_PASS_THROUGH
	manager.StreamIdleTimeout = durationpb.New(idleTimeout)
	manager.Http2ProtocolOptions = resources.HTTP2Options(maxStreams).GetExplicitHttpConfig().GetHttp2ProtocolOptions()
	manager.Http2ProtocolOptions.ConnectionKeepalive = nil // the connection does not leave the process
	h := &EnvoyConfig{
		Clusters: []*clusterv3.Cluster{c.controlCluster(), internalCluster(c.Listener)},
		Listener: &listenerv3.Listener{
			Name:              c.Listener,
			ListenerSpecifier: &listenerv3.Listener_InternalListener{InternalListener: &listenerv3.Listener_InternalListenerConfig{}},
			FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: resources.Wrap(manager)},
			}}}},
			PerConnectionBufferLimitBytes: wrapperspb.UInt32(c.ConnectionBuffer()),
		},
		Route:     route(InternalCluster),
		Bootstrap: c.bootstrap(),
	}
	h.Bootstrap.BootstrapExtensions = []*corev3.TypedExtensionConfig{{Name: "envoy.bootstrap.internal_listener", TypedConfig: resources.Wrap(&internalv3.InternalListener{})}}
	if c.Fallback == "" {
		return h, nil
	}
	h.Clusters = append(h.Clusters, aggregateCluster(c.Fallback))
	h.Route = route(fallbackCluster)
	h.Route.GetRoute().RetryPolicy = fallbackRetryPolicy()
	h.Route.RequestBodyBufferLimit = wrapperspb.UInt64(uint64(c.bodyLimit()))
	return h, nil
}

// internalCluster returns the cluster that leads to the internal listener, over
// HTTP/2 with one connection per worker.
func internalCluster(listener string) *clusterv3.Cluster {
	c := http2Cluster(InternalCluster)
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	c.CircuitBreakers = highLimits()
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: InternalCluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{endpoint(&corev3.Address{
			Address: &corev3.Address_EnvoyInternalAddress{EnvoyInternalAddress: &corev3.EnvoyInternalAddress{
				AddressNameSpecifier: &corev3.EnvoyInternalAddress_ServerListenerName{ServerListenerName: listener},
			}},
		})},
	}}}
	return c
}

// aggregateCluster returns the cluster that prefers the internal listener to the
// fallback.
func aggregateCluster(fallback string) *clusterv3.Cluster {
	config := resources.Wrap(&aggregatev3.ClusterConfig{Clusters: []string{InternalCluster, fallback}})
	return &clusterv3.Cluster{
		Name:                 fallbackCluster,
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.clusters.aggregate", TypedConfig: config}},
		// Retries count here, and right after Envoy's start every request is retried.
		CircuitBreakers: highLimits(),
	}
}

func highLimits() *clusterv3.CircuitBreakers {
	limit := wrapperspb.UInt32(maxStreams)
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections: limit, MaxPendingRequests: limit, MaxRequests: limit, MaxRetries: limit,
	}}}
}

func route(cluster string) *routev3.Route {
	return &routev3.Route{
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			// The default of 15 s would cut a token stream, with status 200.
			Timeout:     durationpb.New(0),
			IdleTimeout: durationpb.New(idleTimeout),
		}},
	}
}

// fallbackRetryPolicy retries a request once, on the fallback cluster, when the internal
// listener marks it as unrouted, or ends without an answer, as it does when it is removed.
func fallbackRetryPolicy() *routev3.RetryPolicy {
	behind := resources.Wrap(&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 1})
	return &routev3.RetryPolicy{
		RetryOn:    resources.RetryOn,
		NumRetries: wrapperspb.UInt32(1),
		RetriableHeaders: []*routev3.HeaderMatcher{{
			Name: UnroutedHeader, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}},
		RetryPriority: &routev3.RetryPolicy_RetryPriority{
			Name:       "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: behind},
		},
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(fallbackBackoff), MaxInterval: durationpb.New(fallbackMaxBackoff),
		},
	}
}
