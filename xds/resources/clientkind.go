package resources

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cascadeinfer/cascade/policies"
)

// clientKind is the kind of client that a resource is rendered for. One plan is rendered
// for all kinds into one set, so that there is one proof, one rollout and one ledger;
// the kinds differ in names and config sources.
type clientKind uint8

const (
	// adsClient clients get everything over one ADS stream: Envoys, gRPC clients and proxies
	// that only Cascade configures.
	adsClient clientKind = iota
	// splitEnvoy clients are Envoys whose listeners and clusters another owner configures.
	// They open one stream each for the route table, the clusters it names and their
	// endpoints, through the cluster that their configuration has for Cascade.
	splitEnvoy
	// federatedGRPC clients have another control plane for all names except those under
	// Cascade's authority.
	federatedGRPC
)

// Authority is the authority in the names of federated clients, and the key of
// Cascade's entry in their bootstrap.
const Authority = "cascade"

// FederatedListenerTemplate is client_listener_resource_name_template of that entry:
// gRPC replaces %s by the path of its target.
const FederatedListenerTemplate = "xdstp://" + Authority + "/envoy.config.listener.v3.Listener/%s"

// SplitRouteName is the RouteConfiguration of another owner's Envoy, for a listener
// that serves the whole fleet.
const SplitRouteName = "cascade/split"

// SplitFetchTimeout bounds how long a split Envoy waits for the endpoints of a cluster.
// It is shorter than the wait for the cluster itself, so that a request which needs
// both is answered by the router and not by a timeout.
const SplitFetchTimeout = 2 * time.Second

// SplitModelRouteName names the RouteConfiguration of a split listener that serves one
// model, whatever the host name of a request.
func SplitModelRouteName(model string) string {
	return "cascade/" + url.PathEscape(model) + "/split"
}

// SplitClusterName names the cluster of stage k of a model for Envoys that know Cascade
// as cluster xds. Its endpoints are those of ClusterName. Clusters are immutable, so
// their name includes everything they depend on.
func SplitClusterName(model string, k int, xds string) string {
	return ClusterName(model, k) + "/" + url.PathEscape(xds)
}

// FederatedListenerName is the resource behind the gRPC target xds://cascade/<model>,
// spelled as gRPC requests it.
func FederatedListenerName(model string) string { return federatedName(ListenerType, model) }

// FederatedRouteName names the RouteConfiguration of the same clients.
func FederatedRouteName(model string) string { return federatedName(RouteType, model) }

// FederatedClusterName names the cluster of stage k for the same clients.
func FederatedClusterName(model string, k int) string {
	return federatedName(ClusterType, model+"/"+StageName(k)+"/"+LoadBalancer)
}

// FederatedEndpointName names its endpoints.
func FederatedEndpointName(model string, k int) string {
	return federatedName(EndpointType, model+"/"+StageName(k))
}

// federatedName returns a name as a canonical URL: gRPC decodes and re-encodes names
// before it compares them.
func federatedName(typeURL, id string) string {
	u := url.URL{Scheme: "xdstp", Host: Authority, Path: "/" + strings.TrimPrefix(typeURL, typePrefix) + "/" + id}
	return u.String()
}

const typePrefix = "type.googleapis.com/"

// naming is the resource names and config source of one kind of client. It is
// comparable.
type naming struct {
	kind       clientKind
	xdsCluster string // split: the client's cluster for Cascade
}

// namingFor returns the names of a client kind under the settings.
func namingFor(f clientKind, s Settings) naming {
	if f == splitEnvoy {
		return naming{kind: splitEnvoy, xdsCluster: cmp.Or(s.XDSCluster, XDSCluster)}
	}
	return naming{kind: f}
}

func (y naming) cluster(model string, k int) string {
	switch y.kind {
	case splitEnvoy:
		return SplitClusterName(model, k, y.xdsCluster)
	case federatedGRPC:
		return FederatedClusterName(model, k)
	}
	return ClusterName(model, k)
}

func (y naming) endpoints(model string, k int) string {
	if y.kind == federatedGRPC {
		return FederatedEndpointName(model, k)
	}
	return EndpointName(model, k)
}

// grpcListener returns the listener name of a model's gRPC clients.
func (y naming) grpcListener(model string) string {
	if y.kind == federatedGRPC {
		return FederatedListenerName(model)
	}
	return GRPCListenerName(model)
}

// grpcRoute returns the route table name of the same clients.
func (y naming) grpcRoute(model string) string {
	if y.kind == federatedGRPC {
		return FederatedRouteName(model)
	}
	return GRPCRouteName(model)
}

// source returns the config source of a cluster's endpoints. For a federated name, its
// authority identifies the control plane.
func (y naming) source() *corev3.ConfigSource {
	if y.kind == splitEnvoy {
		return SplitConfigSource(y.xdsCluster, SplitFetchTimeout)
	}
	return ads()
}

// SplitConfigSource subscribes through a delta stream of its own, to the control plane
// behind an Envoy's cluster xds. fetch bounds the wait for the first response, after
// which Envoy continues without the resource.
func SplitConfigSource(xds string, fetch time.Duration) *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: durationpb.New(fetch),
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_DELTA_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: xds},
			}}},
		}},
	}
}

// stageOf parses the name of a stage cluster of any client kind; ok is false for other
// clusters.
func stageOf(cluster string) (y naming, model string, stage int, ok bool) {
	var id string
	if id, ok = federatedID(ClusterType, cluster); ok {
		y.kind = federatedGRPC
		model, stage, ok = stageIn(strings.TrimSuffix(id, "/"+LoadBalancer))
	} else if parts := strings.Split(cluster, "/"); len(parts) == 4 || len(parts) == 5 {
		escaped := [...]string{parts[1], parts[len(parts)-1]}
		for i, e := range escaped {
			text, err := url.PathUnescape(e)
			if err != nil {
				return naming{}, "", 0, false
			}
			escaped[i] = text
		}
		if len(parts) == 5 {
			y = naming{kind: splitEnvoy, xdsCluster: escaped[1]}
		}
		model, stage, ok = stageIn(escaped[0] + "/" + parts[2])
	}
	// The parsed parts must render to the same name.
	return y, model, stage, ok && y.cluster(model, stage) == cluster
}

// stageIn splits "<model>/s<k>".
func stageIn(id string) (model string, stage int, ok bool) {
	i := strings.LastIndexByte(id, '/')
	if i <= 0 {
		return "", 0, false
	}
	for k := range policies.MaxStages {
		if id[i+1:] == StageName(k) {
			return id[:i], k, true
		}
	}
	return "", 0, false
}

// federatedID returns the part of a federated name after the type.
func federatedID(typeURL, name string) (id string, ok bool) {
	if !strings.HasPrefix(name, "xdstp://"+Authority+"/") {
		return "", false
	}
	u, err := url.Parse(name)
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(u.Path, "/"+strings.TrimPrefix(typeURL, typePrefix)+"/")
}

// tableClients returns the client kind of a route table by its name, and whether the
// table belongs to proxies, whose requests have no length yet.
func tableClients(name string) (f clientKind, edge bool) {
	switch {
	case name == RouteName:
		return adsClient, true
	case strings.HasPrefix(name, "cascade/") && strings.HasSuffix(name, "/split"):
		return splitEnvoy, true
	case strings.HasPrefix(name, "xdstp://"):
		return federatedGRPC, false
	}
	return adsClient, false
}
