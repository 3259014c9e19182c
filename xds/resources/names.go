package resources

import (
	"net/url"
	"strconv"
	"strings"
)

// Type URLs of the resources in a Set, in the order in which they must be applied: a
// cluster before its endpoints, and both before the routes that name them (the
// make-before-break order of the xDS protocol).
const (
	RoutingType   = "type.googleapis.com/cascade.v1.Routing"
	ClusterType   = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType  = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType  = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType     = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	ExtensionType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	SecretType    = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// Names that clients and operators use. They are part of Cascade's contract and never
// change their meaning.
const (
	// ListenerName is the address listener, RouteName the RouteConfiguration that it
	// subscribes to. Followers' plan has the same name.
	ListenerName = "cascade"
	RouteName    = "cascade"
	// LengthCluster is the cluster of the ext_proc length estimator.
	LengthCluster = "cascade/length"
	// TraceCluster is the cluster of the OpenTelemetry collector, if any.
	TraceCluster = "cascade/trace"
	// LengthFilter is the ECDS resource of an estimator that runs inside the proxy, and the
	// metadata key of its settings in every virtual host.
	LengthFilter = "cascade.length.v1"
	// ExtProcFilter is the HTTP filter that calls the ext_proc estimator. It is disabled
	// except on routes that enable it.
	ExtProcFilter = "envoy.filters.http.ext_proc"
	// ObserverCluster is the node cluster of a client that routes nothing, such as a
	// migrator: it watches the plans, and no rollout waits for it.
	ObserverCluster = "cascade-observer"
	// MetadataKey is the filter metadata of endpoints whose field "id" names the replica.
	MetadataKey = "cascade"
)

// LoadBalancer is the last part of every stage cluster's name. Clusters are immutable,
// so another load balancing policy would be another cluster.
const LoadBalancer = "rr"

// ClusterName names the cluster of stage k of a model. The model is
// path-escaped, so that a name splits at its slashes.
func ClusterName(model string, k int) string {
	return EndpointName(model, k) + "/" + LoadBalancer
}

// EndpointName names the ClusterLoadAssignment of stage k of a model: the EDS
// service name of its cluster.
func EndpointName(model string, k int) string {
	return "cascade/" + url.PathEscape(model) + "/" + StageName(k)
}

// StageName is the short name of stage k: "s0", "s1", ….
func StageName(k int) string { return "s" + strconv.Itoa(k) }

// GRPCListenerName is the resource behind the gRPC target xds:///<model>.cascade. The
// model is not escaped: gRPC unescapes the target before it subscribes.
func GRPCListenerName(model string) string { return model + ".cascade" }

// GRPCRouteName names the RouteConfiguration of a model's gRPC clients.
func GRPCRouteName(model string) string { return "cascade/" + url.PathEscape(model) + "/grpc" }

// ShortType returns the last part of a type URL, for messages and GET /status.
func ShortType(typeURL string) string {
	return typeURL[strings.LastIndexByte(typeURL, '.')+1:]
}
