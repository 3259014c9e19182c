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

// clientKind is the kind of client that a resource is spelled for. One plan is
// rendered for all of them into one set, so that there is one proof, one
// rollout and one ledger: what differs is names, and where a client is told to
// look for the next resource.
type clientKind uint8

const (
	// adsClient clients take everything over one ADS stream: the Envoys, gRPC
	// clients and proxies that belong to Cascade alone.
	adsClient clientKind = iota
	// splitEnvoy clients are Envoys whose listeners and clusters belong to somebody
	// else. They ask for the route table, the clusters that it names and their
	// endpoints, each on a stream of its own, from the cluster that their
	// configuration has for Cascade.
	splitEnvoy
	// federatedGRPC clients have another control plane for everything but the names
	// under the authority of this one.
	federatedGRPC
)

// Authority is the authority of the names of federated clients, and the key
// of their bootstrap's entry for Cascade.
const Authority = "cascade"

// FederatedListenerTemplate is client_listener_resource_name_template of that
// entry: gRPC puts the path of its target in for %s.
const FederatedListenerTemplate = "xdstp://" + Authority + "/envoy.config.listener.v3.Listener/%s"

// SplitRouteName is the RouteConfiguration of an Envoy whose listeners belong
// to somebody else, for a listener that serves the whole fleet.
const SplitRouteName = "cascade/split"

// SplitFetchTimeout bounds the wait of a split Envoy for the endpoints of a
// cluster. It is shorter than the wait for the cluster itself, so that a
// request which needs both is answered by the router and not by a timeout.
const SplitFetchTimeout = 2 * time.Second

// SplitModelRouteName names the RouteConfiguration of a split listener that
// serves one model, whatever host name a request has.
func SplitModelRouteName(model string) string {
	return "cascade/" + url.PathEscape(model) + "/split"
}

// SplitClusterName names the cluster of stage k of a model for Envoys that
// know Cascade as the cluster xds. It takes the same endpoints as ClusterName.
// Clusters are immutable, so what they depend on is part of their name.
func SplitClusterName(model string, k int, xds string) string {
	return ClusterName(model, k) + "/" + url.PathEscape(xds)
}

// FederatedListenerName is the resource behind the gRPC target
// xds://cascade/<model>, in the spelling that gRPC asks with.
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

// federatedName is a name in the one canonical form of its URL: gRPC decodes
// names and encodes them again before it compares.
func federatedName(typeURL, id string) string {
	u := url.URL{Scheme: "xdstp", Host: Authority, Path: "/" + strings.TrimPrefix(typeURL, typePrefix) + "/" + id}
	return u.String()
}

const typePrefix = "type.googleapis.com/"

// naming is how one kind of client is told of a plan. It is comparable.
type naming struct {
	kind       clientKind
	xdsCluster string // split: the client's cluster for Cascade
}

// namingFor is the spelling of a form under the settings.
func namingFor(f clientKind, s Settings) naming {
	if f == splitEnvoy {
		return naming{splitEnvoy, cmp.Or(s.XDSCluster, XDSCluster)}
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

// grpcListener is the listener of a model's gRPC clients.
func (y naming) grpcListener(model string) string {
	if y.kind == federatedGRPC {
		return FederatedListenerName(model)
	}
	return GRPCListenerName(model)
}

// grpcRoute is the route table of the same.
func (y naming) grpcRoute(model string) string {
	if y.kind == federatedGRPC {
		return FederatedRouteName(model)
	}
	return GRPCRouteName(model)
}

// source is where the client finds the endpoints of a cluster. A federated
// name says itself whom to ask.
func (y naming) source() *corev3.ConfigSource {
	if y.kind == splitEnvoy {
		return SplitConfigSource(y.xdsCluster, SplitFetchTimeout)
	}
	return ads()
}

// SplitConfigSource points a subscription at Cascade by a delta stream of its own,
// through the cluster that an Envoy has for it. fetch bounds the wait for the
// first answer, after which Envoy goes on without the resource.
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

// stageOf reads the name of a stage cluster back, in any spelling; ok is false
// for other clusters.
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
			y = naming{splitEnvoy, escaped[1]}
		}
		model, stage, ok = stageIn(escaped[0] + "/" + parts[2])
	}
	// The name is compared whole: what was read is only a guess.
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

// federatedID returns what a federated name of a type says behind the type.
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

// tableClients says for whom a route table is spelled, by its name, and whether it
// is a table of proxies, whose requests nobody has measured yet.
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
