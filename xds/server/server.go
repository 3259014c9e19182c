// Package server puts the xDS services on a gRPC server and limits what each
// node may cost.
//
// It registers the aggregated service and one service for each resource type,
// all over go-control-plane's server and one cache, so that a client gets the
// same responses from each. The cache and the record of what nodes have
// acknowledged are behind that server and given by the Config. Node ids are
// authenticated by package nodeauth.
//
// Invariants: only requests of a known type, from a node with an id and within
// its limits, reach that server; a stream belongs to the node of its first
// request until it ends; what one node does ends only that node's streams.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/xds/internal/nodeauth"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config is the configuration of a Server.
type Config struct {
	Cache gcp.Cache // required
	// Callbacks are called by go-control-plane's server; nil: none.
	Callbacks serverv3.Callbacks
	Limits    Limits
	// OnRefusal, unless it is nil, is called for each stream that is refused or ended because of a limit or an invalid
	// request, with its node, or its host if that is not trusted, and its address. It must not block.
	OnRefusal func(client, address string, why error)
	Logger    *slog.Logger // nil discards
}

// Server is the xDS services of one gRPC server.
type Server struct {
	*nodeauth.Refusals        // streams that were refused or ended because of a limit or an invalid request
	cfg                Config // complete
	accounts           *nodeAccounts
}

// service is one of the gRPC services with the type that it serves; "" for all
// types.
type service struct {
	desc *grpc.ServiceDesc
	typ  string
}

// services are the registered services. Their unary methods, for clients that
// poll, are left out.
var services = []service{
	{&discoveryv3.AggregatedDiscoveryService_ServiceDesc, ""},
	{&clusterservice.ClusterDiscoveryService_ServiceDesc, resources.ClusterType},
	{&endpointservice.EndpointDiscoveryService_ServiceDesc, resources.EndpointType},
	{&listenerservice.ListenerDiscoveryService_ServiceDesc, resources.ListenerType},
	{&routeservice.RouteDiscoveryService_ServiceDesc, resources.RouteType},
	{&extensionservice.ExtensionConfigDiscoveryService_ServiceDesc, resources.ExtensionType},
	{&secretservice.SecretDiscoveryService_ServiceDesc, resources.SecretType},
}

// isServed reports whether a type is served.
func isServed(typ string) bool {
	if typ == resources.RoutingType {
		return true // its followers use the aggregated service
	}
	for _, s := range services {
		if s.typ == typ {
			return typ != ""
		}
	}
	return false
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Server, error) {
	if cfg.Cache == nil {
		return nil, errors.New("xds server: Cache is required")
	}
	if err := cfg.Limits.validate(); err != nil {
		return nil, fmt.Errorf("xds server: %w", err)
	}
	cfg.Limits = cfg.Limits.complete()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{Refusals: nodeauth.NewRefusals(cfg.Logger, cfg.OnRefusal), cfg: cfg, accounts: newNodeAccounts(cfg.Limits)}, nil
}

// Register adds the services to a gRPC server. Their streams end with ctx or
// with the gRPC server.
func (s *Server) Register(ctx context.Context, to grpc.ServiceRegistrar) {
	// Without the option, the order of the types is random for gRPC clients.
	server := serverv3.NewServer(ctx, s.cfg.Cache, s.cfg.Callbacks, sotw.WithOrderedADS())
	for _, svc := range services {
		desc := *svc.desc
		desc.Methods = nil
		desc.Streams = make([]grpc.StreamDesc, len(svc.desc.Streams))
		for i, method := range svc.desc.Streams {
			method.Handler = s.limit(svc.typ, method.Handler)
			desc.Streams[i] = method
		}
		to.RegisterService(&desc, server)
	}
}
