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

// Binder binds the clients of one gRPC server to their certificates. It is safe
// for concurrent use.
type Binder struct {
	trustDomain string
	tls         *tls.Config
	notes       *notes
}

// New checks the configuration.
func New(c Config) (*Binder, error) {
	if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
		return nil, fmt.Errorf("binding: %w", err)
	}
	if c.TLS == nil {
		return nil, errors.New("binding: identities are in certificates: TLS must be given")
	}
	return &Binder{trustDomain: c.TrustDomain, tls: c.TLS, notes: newNotes(c.Logger)}, nil
}

// Options are for the gRPC server: its credentials and interceptors.
func (b *Binder) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(handshakes{credentials.NewTLS(b.tls), b.notes}),
		grpc.ChainStreamInterceptor(b.stream), grpc.ChainUnaryInterceptor(b.unary),
	}
}

// Refused counts the handshakes and calls that were refused.
func (b *Binder) Refused() uint64 { return b.notes.total() }

// The services whose clients have a name to bind.
const (
	aggregated = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	secrets    = "envoy.service.secret.v3.SecretDiscoveryService"
	loads      = "envoy.service.load_stats.v3.LoadReportingService"
	processor  = "envoy.service.ext_proc.v3.ExternalProcessor"
	healths    = "grpc.health.v1.Health"
	modules    = "cascade.policy.v1.Modules"
)

// allowed are the roles that may call a service. What is not listed is for
// nobody. Secrets and lengths are for proxies: migrators serve no edge.
var allowed = map[string][]identity.Role{
	aggregated: {identity.Proxy, identity.Migrator},
	"envoy.service.cluster.v3.ClusterDiscoveryService":           {identity.Proxy, identity.Migrator},
	"envoy.service.endpoint.v3.EndpointDiscoveryService":         {identity.Proxy, identity.Migrator},
	"envoy.service.listener.v3.ListenerDiscoveryService":         {identity.Proxy, identity.Migrator},
	"envoy.service.route.v3.RouteDiscoveryService":               {identity.Proxy, identity.Migrator},
	"envoy.service.extension.v3.ExtensionConfigDiscoveryService": {identity.Proxy, identity.Migrator},
	secrets:                           {identity.Proxy},
	loads:                             {identity.Proxy},
	processor:                         {identity.Proxy},
	api.Fleet_ServiceDesc.ServiceName: {identity.Migrator},
	modules:                           {identity.Migrator},
	healths:                           {identity.Proxy, identity.Migrator, identity.Control, identity.Operator},
}

// nameless are the services whose messages name nobody.
var nameless = map[string]bool{processor: true, healths: true, modules: true}

// enter returns who calls a method, or why it may not.
func (b *Binder) enter(ctx context.Context, method string) (identity.ID, error) {
	id, err := identity.Want{TrustDomain: b.trustDomain}.Certificate(leaf(ctx))
	if err != nil {
		return id, err
	}
	for _, role := range allowed[serviceOf(method)] {
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

// leaf is the certificate with which a call came, nil for none.
func leaf(ctx context.Context) *x509.Certificate {
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
func (b *Binder) refuse(ctx context.Context, id identity.ID, method string, why error) error {
	var from net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr
	}
	b.notes.refused(from, id, method, why)
	return status.Error(codes.PermissionDenied, why.Error())
}

func (b *Binder) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if id, err := b.enter(ctx, info.FullMethod); err != nil {
		return nil, b.refuse(ctx, id, info.FullMethod, err)
	}
	if !nameless[serviceOf(info.FullMethod)] {
		return nil, status.Error(codes.PermissionDenied, "only streams are bound to a certificate here")
	}
	return handler(ctx, req)
}

func (b *Binder) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	id, err := b.enter(ss.Context(), info.FullMethod)
	if err != nil {
		return b.refuse(ss.Context(), id, info.FullMethod, err)
	}
	if nameless[serviceOf(info.FullMethod)] {
		return handler(srv, ss)
	}
	s := &stream{ServerStream: ss, binder: b, id: id, method: info.FullMethod}
	err = handler(srv, s)
	// A service may take the end of its stream for the client's.
	if why := s.why.Load(); why != nil {
		return *why
	}
	return err
}

// name is whom a message claims to be of, "" where it does not say.
func name(m any) (string, error) {
	switch m := m.(type) {
	case interface{ GetNode() *corev3.Node }:
		return m.GetNode().GetId(), nil
	case *api.LoadReport:
		return m.GetReplica(), nil
	}
	return "", fmt.Errorf("internal error: a %T has no name to bind", m)
}

// check says why a message cannot be of an identity; first is that of a stream,
// which must name its sender.
func check(id identity.ID, m any, first claim) error {
	claimed, err := name(m)
	if err != nil {
		return err
	}
	own := id.Node()
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
