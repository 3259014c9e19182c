package client

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	rrv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	wrrlocalityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Envoy's defaults of a cluster.
const (
	defaultConnectTimeout = 5 * time.Second
	defaultMaxRequests    = 1024
	defaultMaxRetries     = 3
	defaultPanic          = 50.0 // percent
)

// Cluster is a set of interchangeable upstreams and their connection settings.
type Cluster struct {
	Name    string
	Version string
	EDSName string      // EDS resource name; empty with Inline
	Inline  *Assignment // endpoints of a cluster that does not use EDS

	ConnectTimeout time.Duration
	HTTP2          bool   // h2c with prior knowledge; otherwise HTTP/1.1
	MaxStreams     uint32 // HTTP/2 streams per connection; 0 = what the peer allows
	// Ping is how often a silent HTTP/2 connection is probed, PingTimeout how
	// long the answer may take; 0 = never.
	Ping, PingTimeout time.Duration

	// HashKeys chooses the endpoint by the hash of a request's key (Route.HashHeader), so that
	// endpoints that come or go change the choice for as few keys as possible.
	HashKeys bool
	// LocalityWeighted multiplies an endpoint's weight by its locality's share.
	LocalityWeighted bool
	PanicThreshold   float64 // percent of available hosts below which health is ignored; 0 = never

	MaxRequests      int // concurrent requests of the cluster
	MaxRetries       int // concurrent retries of the cluster
	OutlierDetection *OutlierDetection

	fetchTimeout time.Duration // of the assignment
}

// OutlierDetection ejects hosts by consecutive failures. The statistical detectors of
// Envoy (success rate, failure percentage) are not part of this client.
type OutlierDetection struct {
	Consecutive5xx            int // answers of 500…599, and local failures unless Split; 0 = off
	ConsecutiveGateway        int // 502, 503, 504, and local failures unless Split; 0 = off
	ConsecutiveLocal          int // connect failures, resets, timeouts, when Split; 0 = off
	SplitLocal                bool
	Interval                  time.Duration // a host's multiplier decreases by one per interval without ejection
	BaseEjection, MaxEjection time.Duration // the n-th ejection lasts n·Base, at most Max
	MaxPercent                int           // no host is ejected while at least this share of the hosts is
}

func decodeCluster(name string, a *anypb.Any) (any, error) {
	f := new(faults)
	c := openNamed(f, "cluster", "name", name, a, &clusterv3.Cluster{}, (*clusterv3.Cluster).GetName)
	// DNS options and health checks are not refused: names are resolved when
	// a connection is made, and health comes by EDS and outlier detection.
	f.only("cluster", c, "name", "alt_stat_name", "type", "eds_cluster_config", "connect_timeout", "per_connection_buffer_limit_bytes",
		"lb_policy", "load_assignment", "health_checks", "circuit_breakers", "typed_extension_protocol_options", "http2_protocol_options",
		"dns_refresh_rate", "dns_jitter", "dns_failure_refresh_rate", "respect_dns_ttl", "dns_lookup_family", "typed_dns_resolver_config",
		"wait_for_warm_on_init", "outlier_detection", "cleanup_interval", "common_lb_config", "transport_socket", "metadata",
		"upstream_connection_options", "close_connections_on_host_health_failure", "ignore_health_on_host_removal", "load_balancing_policy",
		"lrs_server", "lrs_report_endpoint_metrics", "track_timeout_budgets", "track_cluster_stats", "preconnect_policy")
	out := &Cluster{Name: name}
	if t := c.GetTransportSocket(); t != nil && t.GetTypedConfig().GetTypeUrl() != rawBufferType {
		f.addf("cluster.transport_socket: TLS to endpoints is not supported by this client")
	}
	out.ConnectTimeout = f.period("cluster.connect_timeout", c.GetConnectTimeout(), defaultConnectTimeout)
	out.decodeEndpointsOf(f, c)
	out.decodeProtocol(f, c)
	out.decodeBalancing(f, c)
	out.decodeBreakers(f, c.GetCircuitBreakers())
	out.OutlierDetection = decodeOutlier(f, "cluster.outlier_detection", c.GetOutlierDetection())
	return out, f.err
}

func (out *Cluster) decodeEndpointsOf(f *faults, c *clusterv3.Cluster) {
	if c.GetClusterType() != nil {
		f.addf("cluster.cluster_type: not supported by this client")
	}
	switch c.GetType() {
	case clusterv3.Cluster_EDS:
		out.EDSName = cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())
		out.fetchTimeout = decodeSource(f, "cluster.eds_cluster_config.eds_config", c.GetEdsClusterConfig().GetEdsConfig())
	case clusterv3.Cluster_STATIC, clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS:
		out.Inline = newAssignment(f, "cluster.load_assignment", c.GetLoadAssignment())
	default:
		f.addf("cluster.type: %s is not supported by this client", c.GetType())
	}
}

func (out *Cluster) decodeProtocol(f *faults, c *clusterv3.Cluster) {
	h2 := c.GetHttp2ProtocolOptions()
	for key, a := range c.GetTypedExtensionProtocolOptions() {
		if key != upstreamProtocolsKey {
			f.addf("cluster.typed_extension_protocol_options[%q]: not supported by this client", key)
			return
		}
		const at = "cluster.typed_extension_protocol_options"
		o := open(f, at, a, &httpv3.HttpProtocolOptions{})
		f.only(at, o, "common_http_protocol_options", "explicit_http_config")
		switch e := o.GetExplicitHttpConfig().GetProtocolConfig().(type) {
		case *httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions:
			h2 = e.Http2ProtocolOptions
		case *httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions:
		default:
			f.addf("%s.explicit_http_config: must be HTTP/1.1 or HTTP/2", at)
		}
	}
	if h2 != nil {
		const at = "cluster.http2_protocol_options.connection_keepalive"
		out.HTTP2 = true
		out.MaxStreams = h2.GetMaxConcurrentStreams().GetValue()
		out.Ping = f.period(at+".interval", h2.GetConnectionKeepalive().GetInterval(), 0)
		out.PingTimeout = f.period(at+".timeout", h2.GetConnectionKeepalive().GetTimeout(), 0)
	}
}

// decodeBalancing uses the first policy of the list that it knows, as Envoy does.
func (out *Cluster) decodeBalancing(f *faults, c *clusterv3.Cluster) {
	out.PanicThreshold = defaultPanic
	lb := c.GetCommonLbConfig()
	if t := lb.GetHealthyPanicThreshold(); t != nil {
		if !(t.GetValue() >= 0 && t.GetValue() <= 100) {
			f.addf("cluster.common_lb_config.healthy_panic_threshold: %v is not a percentage", t.GetValue())
		}
		out.PanicThreshold = t.GetValue()
	}
	out.LocalityWeighted = lb.GetLocalityWeightedLbConfig() != nil
	policies := c.GetLoadBalancingPolicy().GetPolicies()
	if len(policies) == 0 {
		if c.GetLoadBalancingPolicy() != nil || c.GetLbPolicy() != clusterv3.Cluster_ROUND_ROBIN {
			f.addf("cluster.lb_policy: %s is not supported by this client; use ROUND_ROBIN", c.GetLbPolicy())
		}
		return
	}
	var names []string
	for _, p := range policies {
		a := p.GetTypedExtensionConfig().GetTypedConfig()
		switch a.GetTypeUrl() {
		case roundRobinType:
			rr := open(f, "cluster.load_balancing_policy.round_robin", a, &rrv3.RoundRobin{})
			out.LocalityWeighted = out.LocalityWeighted || rr.GetLocalityLbConfig().GetLocalityWeightedLbConfig() != nil
			return
		case maglevType:
			m := open(f, "cluster.load_balancing_policy.maglev", a, &maglevv3.Maglev{})
			f.only("cluster.load_balancing_policy.maglev", m, "table_size")
			out.HashKeys = true
			return
		case wrrLocalityType:
			w := open(f, "cluster.load_balancing_policy.wrr_locality", a, &wrrlocalityv3.WrrLocality{})
			for _, q := range w.GetEndpointPickingPolicy().GetPolicies() {
				if q.GetTypedExtensionConfig().GetTypedConfig().GetTypeUrl() == roundRobinType {
					out.LocalityWeighted = true
					return
				}
			}
		}
		names = append(names, p.GetTypedExtensionConfig().GetName())
	}
	f.addf("cluster.load_balancing_policy: none of %s is supported by this client; add round_robin", strings.Join(names, ", "))
}

func (out *Cluster) decodeBreakers(f *faults, b *clusterv3.CircuitBreakers) {
	out.MaxRequests, out.MaxRetries = defaultMaxRequests, defaultMaxRetries
	for i, t := range b.GetThresholds() {
		if t.GetPriority() != 0 {
			continue // no route here has another priority
		}
		f.only(fmt.Sprintf("cluster.circuit_breakers.thresholds[%d]", i), t, "priority", "max_connections", "max_pending_requests",
			"max_requests", "max_retries", "track_remaining", "max_connection_pools")
		out.MaxRequests = orDefault(t.GetMaxRequests(), out.MaxRequests)
		out.MaxRetries = orDefault(t.GetMaxRetries(), out.MaxRetries)
	}
}

func decodeOutlier(f *faults, at string, o *clusterv3.OutlierDetection) *OutlierDetection {
	if o == nil {
		return nil
	}
	out := &OutlierDetection{
		Consecutive5xx:     enforced(o.GetConsecutive_5Xx(), 5, o.GetEnforcingConsecutive_5Xx(), 100),
		ConsecutiveGateway: enforced(o.GetConsecutiveGatewayFailure(), 5, o.GetEnforcingConsecutiveGatewayFailure(), 0),
		ConsecutiveLocal:   enforced(o.GetConsecutiveLocalOriginFailure(), 5, o.GetEnforcingConsecutiveLocalOriginFailure(), 100),
		SplitLocal:         o.GetSplitExternalLocalOriginErrors(),
		MaxPercent:         min(orDefault(o.GetMaxEjectionPercent(), 10), 100),
	}
	out.Interval = f.period(at+".interval", o.GetInterval(), 10*time.Second)
	out.BaseEjection = f.period(at+".base_ejection_time", o.GetBaseEjectionTime(), 30*time.Second)
	out.MaxEjection = max(f.period(at+".max_ejection_time", o.GetMaxEjectionTime(), 300*time.Second), out.BaseEjection)
	return out
}

// enforced returns a detector's threshold, 0 if it must not eject. A share between 0 and
// 100 counts as 100: Envoy's random choice would only delay the ejection.
func enforced(threshold *wrapperspb.UInt32Value, missing int, share *wrapperspb.UInt32Value, missingShare int) int {
	if orDefault(share, missingShare) == 0 {
		return 0
	}
	return orDefault(threshold, missing)
}

// orDefault reads an optional count.
func orDefault(v *wrapperspb.UInt32Value, missing int) int {
	if v == nil {
		return missing
	}
	return int(v.GetValue())
}
