package resources

import (
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// loadMetrics are the response headers in which an endpoint reports its load (ORCA).
// Proxies report them to the control plane and remove them from the response.
var loadMetrics = []string{"endpoint-load-metrics", "endpoint-load-metrics-bin", "endpoint-load-metrics-json"}

// ShareMetric is the reported metric: the share of its KV cache that an endpoint uses,
// under vLLM's name. It is part of a cluster, which is never edited, so another metric
// would need clusters of another name.
const ShareMetric = "named_metrics.kv_cache_usage_perc"

// reportLoad enables load reporting for a cluster: Envoys report the endpoints' metrics,
// and gRPC clients report at all. Envoys also need LoadStatsConfig in the bootstrap.
func reportLoad(c *clusterv3.Cluster) *clusterv3.Cluster {
	c.LrsReportEndpointMetrics = []string{ShareMetric}
	c.LrsServer = &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}},
	}
	return c
}

// LoadStatsConfig makes an Envoy report its load to the control plane. It is part of the
// bootstrap, because a cluster cannot configure it.
func LoadStatsConfig(service []*corev3.GrpcService) *bootstrapv3.ClusterManager {
	return &bootstrapv3.ClusterManager{LoadStatsConfig: &corev3.ApiConfigSource{
		ApiType:             corev3.ApiConfigSource_GRPC,
		TransportApiVersion: corev3.ApiVersion_V3,
		GrpcServices:        service,
	}}
}
