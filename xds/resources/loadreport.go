package resources

import (
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// loadMetrics are the header fields in which an endpoint's answer tells of its
// load (ORCA). Proxies report what is in them, and clients do not see them.
var loadMetrics = []string{"endpoint-load-metrics", "endpoint-load-metrics-bin", "endpoint-load-metrics-json"}

// shareMetric is what proxies report of them: the share of its KV cache that an
// endpoint uses, as vLLM spells it. It is part of a cluster, which is never
// edited, so another one would need clusters of another name.
const shareMetric = "named_metrics.kv_cache_usage_perc"

// reportLoad makes proxies report a cluster's load: Envoys what answers tell of
// it, and gRPC clients anything at all. Envoys need to be told in the bootstrap,
// too.
func reportLoad(c *clusterv3.Cluster) *clusterv3.Cluster {
	c.LrsReportEndpointMetrics = []string{shareMetric}
	c.LrsServer = &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}},
	}
	return c
}

// LoadStatsConfig makes an Envoy report its load to the control plane. It is in the
// bootstrap, because a cluster cannot say so.
func LoadStatsConfig(service []*corev3.GrpcService) *bootstrapv3.ClusterManager {
	return &bootstrapv3.ClusterManager{LoadStatsConfig: &corev3.ApiConfigSource{
		ApiType:             corev3.ApiConfigSource_GRPC,
		TransportApiVersion: corev3.ApiVersion_V3,
		GrpcServices:        service,
	}}
}
