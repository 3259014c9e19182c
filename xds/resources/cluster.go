package resources

import (
	"net/netip"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A plan reaches the clusters by plan.go, stage_endpoints.go and route.go: clusters
// themselves do not change with it.

// Outlier detection of stage clusters. It ejects a dead replica when the control plane
// is not available to do it, so it ejects and retries quickly: a retry of a dead
// replica costs one retried connection.
const (
	ejectAfterConnectFailures = 2 // consecutive resets, refusals and timeouts
	ejectAfterGatewayErrors   = 3 // consecutive 502, 503, 504: the front end has lost its engine
	ejectionBase              = 2 * time.Second
	ejectionMax               = 10 * time.Second
	ejectionInterval          = time.Second
)

// HTTP/2 towards the replicas.
const (
	// PingInterval is the time between pings: a dead host sends no reset, and pings detect it.
	PingInterval = 2 * time.Second
	// UpstreamWindow is how much of an answer a proxy holds for a client that does not read.
	UpstreamWindow = 64 << 10
	// Streams share one connection per worker, so its window must be large enough for
	// a thousand answers that are not read.
	upstreamConnectionWindow = 64 << 20
)

// stageCluster returns the cluster of one stage. It is immutable for the life of the
// model: a plan changes its endpoints (stageAssignment) and the routes to it.
func stageCluster(y naming, model string, k int, s Settings) *clusterv3.Cluster {
	c := reportLoad(&clusterv3.Cluster{
		Name:                 y.cluster(model, k),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{
			EdsConfig:   y.source(),
			ServiceName: y.endpoints(model, k),
		},
		ConnectTimeout: durationpb.New(s.ConnectTimeout),
		LoadBalancingPolicy: &clusterv3.LoadBalancingPolicy{
			Policies: []*clusterv3.LoadBalancingPolicy_Policy{{TypedExtensionConfig: stageBalancer()}},
		},
		CircuitBreakers: circuitBreakers(s),
		OutlierDetection: &clusterv3.OutlierDetection{
			Interval:                               durationpb.New(ejectionInterval),
			BaseEjectionTime:                       durationpb.New(ejectionBase),
			MaxEjectionTime:                        durationpb.New(ejectionMax),
			MaxEjectionTimeJitter:                  durationpb.New(ejectionInterval),
			MaxEjectionPercent:                     wrapperspb.UInt32(100),
			SplitExternalLocalOriginErrors:         true,
			ConsecutiveLocalOriginFailure:          wrapperspb.UInt32(ejectAfterConnectFailures),
			EnforcingConsecutiveLocalOriginFailure: wrapperspb.UInt32(100),
			ConsecutiveGatewayFailure:              wrapperspb.UInt32(ejectAfterGatewayErrors),
			EnforcingConsecutiveGatewayFailure:     wrapperspb.UInt32(100),
			// A 500 depends on the request more than on the replica: a request that crashes engines
			// must not eject one replica after the other.
			EnforcingConsecutive_5Xx:        wrapperspb.UInt32(0),
			EnforcingSuccessRate:            wrapperspb.UInt32(0),
			EnforcingLocalOriginSuccessRate: wrapperspb.UInt32(0),
		},
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{
			// At 1 %, panic mode means that no host is left in any priority; then trying all hosts
			// is better than refusing. At the default of 50 %, a fleet that is mostly down would
			// spread requests over its dead half; at 0, it would wait for an ejection to end after
			// the replicas are back.
			HealthyPanicThreshold: &typev3.Percent{Value: 1},
			// By default Envoy applies the second ejection within a second at that second's end. Until then all
			// requests may go to a dead replica: the others may still be ejected for an earlier fault.
			UpdateMergeWindow: durationpb.New(0),
		},
		TypedExtensionProtocolOptions: protocolOptions(s.MaxRequests, s.PingTimeout),
	})
	if y.kind != federatedGRPC {
		c.TransportSocket = s.ReplicaTLS.socket()
	}
	return c
}

// stageBalancer returns the load balancing policy of a stage's clusters: weighted round robin. The weights follow the
// load that the replicas report. Least-request must not be used: front ends keep the streams of requests that have moved
// to other replicas, so a proxy's requests in progress at a replica are not its load.
func stageBalancer() *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: "envoy.load_balancing_policies.round_robin", TypedConfig: Wrap(&roundrobinv3.RoundRobin{})}
}

// circuitBreakers returns breakers that open only beyond the settings' requests.
func circuitBreakers(s Settings) *clusterv3.CircuitBreakers {
	limit := wrapperspb.UInt32(s.MaxRequests)
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections: limit, MaxPendingRequests: limit, MaxRequests: limit, MaxRetries: limit,
	}}}
}

// protocolOptionsKey is the key of the HTTP/2 options in a cluster.
const protocolOptionsKey = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func protocolOptions(maxStreams uint32, pingTimeout time.Duration) map[string]*anypb.Any {
	options := HTTP2Options(maxStreams)
	options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().ConnectionKeepalive.Timeout = durationpb.New(pingTimeout)
	return map[string]*anypb.Any{protocolOptionsKey: Wrap(options)}
}

// HTTP2Options returns the protocol options of an h2c (or, under TLS, h2) cluster with
// that many streams per connection, and pings that detect a dead host.
func HTTP2Options(maxStreams uint32) *upstreamsv3.HttpProtocolOptions {
	return &upstreamsv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamsv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamsv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamsv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
						MaxConcurrentStreams:        wrapperspb.UInt32(maxStreams),
						InitialStreamWindowSize:     wrapperspb.UInt32(UpstreamWindow),
						InitialConnectionWindowSize: wrapperspb.UInt32(upstreamConnectionWindow),
						ConnectionKeepalive: &corev3.KeepaliveSettings{
							Interval: durationpb.New(PingInterval),
							Timeout:  durationpb.New(defaultPingTimeout),
						},
					},
				},
			},
		},
	}
}

// serviceCluster returns a static cluster for another gRPC service: the length
// estimator or the trace collector.
func serviceCluster(name, address string, s Settings) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(s.ConnectTimeout),
		CircuitBreakers:      circuitBreakers(s),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{
				LbEndpoints: []*endpointv3.LbEndpoint{endpointAt(netip.MustParseAddrPort(address))},
			}},
		},
		TypedExtensionProtocolOptions: protocolOptions(s.MaxRequests, s.PingTimeout),
	}
}

// ads returns a config source that uses the stream on which the resource came.
func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

func socketAddress(a netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}
}
