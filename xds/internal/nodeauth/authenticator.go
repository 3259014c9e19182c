// Package nodeauth makes the clients of a gRPC server be who their certificates
// say: a node that asks for xDS or reports loads is the proxy or the migrator of
// its certificate's identity (policies/identity), and a migrator reports for its
// own replica.
//
// It is interceptors, and no more: it verifies no chain, which TLS has done, and
// knows no nodes, groups or limits. What is behind it may believe node ids.
//
// Invariants:
//
//  1. Without the identity that a service is for, nothing of a call reaches it.
//  2. No message of a stream reaches its service unless the name in it is that of
//     the certificate; one that names nobody does so only after one that does.
//  3. A refusal ends that stream with PermissionDenied and nothing else. It is
//     logged once a minute for each identity and, where a handshake already
//     fails, for each machine.
package nodeauth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config is the configuration of a Binder.
type Config struct {
	TrustDomain string // whose identities count; required
	// TLS is the server's. It must demand certificates and verify their chains.
	// Required.
	TLS    *tls.Config
	Logger *slog.Logger // nil discards
}

// Authenticator binds the clients of one gRPC server to their certificates. It is safe
// for concurrent use.
type Authenticator struct {
	trustDomain string
	tls         *tls.Config
	refusals    *refusalLog
}

// New checks the configuration.
func New(c Config) (*Authenticator, error) {
	if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
		return nil, fmt.Errorf("binding: %w", err)
	}
	if c.TLS == nil {
		return nil, errors.New("binding: identities are in certificates: TLS must be given")
	}
	return &Authenticator{trustDomain: c.TrustDomain, tls: c.TLS, refusals: newRefusalLog(c.Logger)}, nil
}

// Options are for the gRPC server: its credentials and interceptors.
func (b *Authenticator) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(loggingCredentials{credentials.NewTLS(b.tls), b.refusals}),
		grpc.ChainStreamInterceptor(b.stream), grpc.ChainUnaryInterceptor(b.unary),
	}
}

// Refused counts the handshakes and calls that were refused.
func (b *Authenticator) Refused() uint64 { return b.refusals.total() }

// The services whose clients have a name to bind.
const (
	adsService        = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	secretService     = "envoy.service.secret.v3.SecretDiscoveryService"
	loadReportService = "envoy.service.load_stats.v3.LoadReportingService"
	extProcService    = "envoy.service.ext_proc.v3.ExternalProcessor"
	healthService     = "grpc.health.v1.Health"
	moduleService     = "cascade.policy.v1.Modules"
)

// allowedRoles are the roles that may call a service. What is not listed is for
// nobody. Secrets and lengths are for proxies: migrators serve no edge.
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

// withoutName are the services whose messages name nobody.
var withoutName = map[string]bool{extProcService: true, healthService: true, moduleService: true}

// authorize returns who calls a method, or why it may not.
func (b *Authenticator) authorize(ctx context.Context, method string) (identity.ID, error) {
	id, err := identity.Matcher{TrustDomain: b.trustDomain}.CheckCertificate(clientCertificate(ctx))
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

// serviceOf cuts a service out of "/service/method".
func serviceOf(method string) string {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return service
}

// clientCertificate is the certificate with which a call came, nil for none.
func clientCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return nil
	}
	return info.State.PeerCertificates[0]
}

// refuse notes a refusal and returns what the client is told.
func (b *Authenticator) refuse(ctx context.Context, id identity.ID, method string, why error) error {
	var from net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr
	}
	b.refusals.record(from, id, method, why)
	return status.Error(codes.PermissionDenied, why.Error())
}

func (b *Authenticator) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if id, err := b.authorize(ctx, info.FullMethod); err != nil {
		return nil, b.refuse(ctx, id, info.FullMethod, err)
	}
	if !withoutName[serviceOf(info.FullMethod)] {
		return nil, status.Error(codes.PermissionDenied, "only streams are bound to a certificate here")
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
	// A service may take the end of its stream for the client's.
	if why := s.refusal.Load(); why != nil {
		return *why
	}
	return err
}

// claimedName is whom a message claims to be of, "" where it does not say.
func claimedName(m any) (string, error) {
	switch m := m.(type) {
	case interface{ GetNode() *corev3.Node }:
		return m.GetNode().GetId(), nil
	case *api.LoadReport:
		return m.GetReplica(), nil
	}
	return "", fmt.Errorf("internal error: a %T has no name to bind", m)
}

// checkClaim says why a message cannot be of an identity; first is that of a stream,
// which must name its sender.
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
		return errors.New("the first message names nobody")
	case claimed != "" && claimed != own:
		return fmt.Errorf("the certificate is %s, which is %q here and not %.80q", id, own, claimed)
	}
	if id.Role != identity.Migrator {
		return nil
	}
	if n, ok := m.(interface{ GetNode() *corev3.Node }); ok && n.GetNode() != nil && n.GetNode().GetCluster() != resources.ObserverCluster {
		return fmt.Errorf("%s routes nothing: its node cluster must be %q and not %.80q", id, resources.ObserverCluster, n.GetNode().GetCluster())
	}
	if t, ok := m.(interface{ GetTypeUrl() string }); ok && t.GetTypeUrl() == resources.SecretType {
		return fmt.Errorf("%s may not ask for secrets", id)
	}
	return nil
}

// claim says whether a message must name its sender.
type claim uint8

const (
	mayName claim = iota
	mustName
)
