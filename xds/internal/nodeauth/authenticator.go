// Package nodeauth authenticates the clients of a gRPC server by their
// certificates: a node that asks for xDS or reports loads must be the proxy or
// the migrator of its certificate's identity (internal/identity), and a
// migrator may report only for its own replica.
//
// An Authenticator provides the server's credentials and interceptors. TLS has
// verified the certificate chains before. Services behind it can trust node
// ids; nodes, groups and limits are theirs.
//
// Invariants:
//
//  1. Nothing of a call reaches a service without an identity that may call
//     it.
//  2. No message of a stream reaches its service unless the name in it is that
//     of the certificate; a message without a name does so only after one with
//     it.
//  3. A refusal ends that stream with PermissionDenied and nothing else. It is
//     logged once a minute for each identity and, if the handshake already
//     fails, for each host.
package nodeauth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config is the configuration of a Binder.
type Config struct {
	TrustDomain string // of the accepted identities; required
	// TLS is the server's configuration. It must demand certificates and verify
	// their chains. Required.
	TLS *tls.Config
	// OnRefusal, unless it is nil, is called for each refusal, with the client's identity, or its host if it has none, and
	// its address. It must not block.
	OnRefusal func(client, address string, why error)
	Logger    *slog.Logger // nil discards
}

// Authenticator authenticates the clients of one gRPC server. It is safe for
// concurrent use.
type Authenticator struct {
	*Refusals
	trustDomain string
	tls         *tls.Config
}

// New checks the configuration.
func New(c Config) (*Authenticator, error) {
	if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
		return nil, fmt.Errorf("node authentication: %w", err)
	}
	if c.TLS == nil {
		return nil, errors.New("node authentication: TLS is required, because identities are in certificates")
	}
	return &Authenticator{Refusals: NewRefusals(c.Logger, c.OnRefusal), trustDomain: c.TrustDomain, tls: c.TLS}, nil
}

// Options returns the credentials and interceptors for the gRPC server.
func (b *Authenticator) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(loggingCredentials{credentials.NewTLS(b.tls), b}),
		grpc.ChainStreamInterceptor(b.stream), grpc.ChainUnaryInterceptor(b.unary),
	}
}

// The services that have rules of their own below.
const (
	adsService        = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	secretService     = "envoy.service.secret.v3.SecretDiscoveryService"
	loadReportService = "envoy.service.load_stats.v3.LoadReportingService"
	extProcService    = "envoy.service.ext_proc.v3.ExternalProcessor"
	healthService     = "grpc.health.v1.Health"
	moduleService     = "cascade.policy.v1.Modules"
)

// allowedRoles lists the roles that may call each service. A service that is
// not listed cannot be called. Secrets and lengths are for proxies: migrators
// serve no edge.
var allowedRoles = map[string][]identity.Role{
	adsService: {identity.Proxy, identity.Migrator},
	"envoy.service.cluster.v3.ClusterDiscoveryService":           {identity.Proxy, identity.Migrator},
	"envoy.service.endpoint.v3.EndpointDiscoveryService":         {identity.Proxy, identity.Migrator},
	"envoy.service.listener.v3.ListenerDiscoveryService":         {identity.Proxy, identity.Migrator},
	"envoy.service.route.v3.RouteDiscoveryService":               {identity.Proxy, identity.Migrator},
	"envoy.service.extension.v3.ExtensionConfigDiscoveryService": {identity.Proxy, identity.Migrator},
	secretService:                     {identity.Proxy},
	loadReportService:                 {identity.Proxy},
	extProcService:                    {identity.Proxy},
	api.Fleet_ServiceDesc.ServiceName: {identity.Migrator},
	moduleService:                     {identity.Migrator},
	healthService:                     {identity.Proxy, identity.Migrator, identity.Control, identity.Operator},
}

// withoutName are the services whose messages carry no name.
var withoutName = map[string]bool{extProcService: true, healthService: true, moduleService: true}

// authorize returns the identity that calls a method, or why it may not.
func (b *Authenticator) authorize(ctx context.Context, method string) (identity.ID, error) {
	id, err := identity.Matcher{TrustDomain: b.trustDomain}.CheckCertificate(identity.PeerCertificate(ctx))
	if err != nil {
		return id, err
	}
	for _, role := range allowedRoles[serviceOf(method)] {
		if id.Role == role {
			return id, nil
		}
	}
	return id, fmt.Errorf("%s may not call %s", id, method)
}

// serviceOf returns the service in "/service/method".
func serviceOf(method string) string {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return service
}

// refuse records a refusal and returns the error for the client.
func (b *Authenticator) refuse(ctx context.Context, id identity.ID, method string, why error) error {
	b.record(identity.PeerAddress(ctx), id, method, why)
	return status.Error(codes.PermissionDenied, why.Error())
}

// record records a refusal of an identity or, without one, of a host.
func (b *Authenticator) record(from net.Addr, id identity.ID, method string, why error) {
	address := ""
	if from != nil {
		address = from.String()
	}
	client := ""
	if id != (identity.ID{}) {
		client = id.String()
	}
	message := "client refused: its certificate does not match"
	if errors.Is(why, ErrPlainText) {
		message = "client refused: it does not speak TLS"
	}
	b.Record(message, client, address, method, why)
}

func (b *Authenticator) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if id, err := b.authorize(ctx, info.FullMethod); err != nil {
		return nil, b.refuse(ctx, id, info.FullMethod, err)
	}
	if !withoutName[serviceOf(info.FullMethod)] {
		return nil, status.Error(codes.PermissionDenied, "unary calls are not supported")
	}
	return handler(ctx, req)
}

func (b *Authenticator) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	id, err := b.authorize(ss.Context(), info.FullMethod)
	if err != nil {
		return b.refuse(ss.Context(), id, info.FullMethod, err)
	}
	if withoutName[serviceOf(info.FullMethod)] {
		return handler(srv, ss)
	}
	s := &authenticatedStream{ServerStream: ss, authenticator: b, id: id, method: info.FullMethod}
	err = handler(srv, s)
	// The service may take the refusal for the client's end of the stream.
	if why := s.refusal.Load(); why != nil {
		return *why
	}
	return err
}

// claimedName returns the name that a message claims to be from, "" if it has
// none.
func claimedName(m any) (string, error) {
	switch m := m.(type) {
	case interface{ GetNode() *corev3.Node }:
		return m.GetNode().GetId(), nil
	case *api.LoadReport:
		return m.GetReplica(), nil
	}
	return "", fmt.Errorf("internal error: message of type %T has no name", m)
}

// checkClaim returns an error for a message that cannot be from the identity.
// first says whether the message must carry a name.
func checkClaim(id identity.ID, m any, first claim) error {
	claimed, err := claimedName(m)
	if err != nil {
		return err
	}
	own := id.NodeID()
	if _, ok := m.(*api.LoadReport); ok {
		own = id.Name
	}
	switch {
	case claimed == "" && first == mustName:
		return errors.New("the first message carries no name")
	case claimed != "" && claimed != own:
		return fmt.Errorf("message from %.80[3]q, but the certificate is %[1]s, whose name here is %[2]q", id, own, claimed)
	}
	if id.Role != identity.Migrator {
		return nil
	}
	if n, ok := m.(interface{ GetNode() *corev3.Node }); ok && n.GetNode() != nil && n.GetNode().GetCluster() != resources.ObserverCluster {
		return fmt.Errorf("%s: node cluster %.80[3]q: must be %[2]q, because migrators route nothing", id, resources.ObserverCluster, n.GetNode().GetCluster())
	}
	if t, ok := m.(interface{ GetTypeUrl() string }); ok && t.GetTypeUrl() == resources.SecretType {
		return fmt.Errorf("%s may not ask for secrets", id)
	}
	return nil
}

// claim says whether a message must carry its sender's name.
type claim uint8

const (
	mayName claim = iota
	mustName
)
