package control

import (
	"crypto/tls"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func edgeCertificate(key string) *resources.Certificate {
	return &resources.Certificate{Chain: []byte("chain"), Key: []byte(key)}
}

// dialAs connects to a Control with TLS as a component.
func dialAs(t *testing.T, c *runningControl, a *issuer.Authority, role identity.Role, name string) *grpc.ClientConn {
	t.Helper()
	creds := a.ClientTLS(a.ComponentCertificate(t, role, name), identity.Matcher{TrustDomain: issuer.TrustDomain, Role: identity.Control})
	conn := testkit.Must(grpc.NewClient(c.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(creds))))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// startEdge runs a Control that has the edge's certificate for the proxy "edge".
func startEdge(t *testing.T) (*runningControl, *issuer.Authority) {
	a := issuer.New(t)
	server := a.ServerTLS(a.ComponentCertificate(t, identity.Control, "main"))
	return startControl(t, Config{
		Rules: fastRules(), Replicas: newFakeFleet(t, 1).list, TLS: server, TrustDomain: issuer.TrustDomain,
		Proxies: []string{"edge", "edge-*"}, EdgeCertificate: edgeCertificate("first"), Audit: newAudit(t),
	}), a
}

// TestSetEdgeCertificate checks that a listed proxy which subscribes to the certificate
// of the edge is sent it, and each new one. What an Envoy does with it is tested in
// package publish.
func TestSetEdgeCertificate(t *testing.T) {
	c, a := startEdge(t)
	stream := testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(dialAs(t, c, a, identity.Proxy, "edge")).DeltaAggregatedResources(t.Context()))
	testkit.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "edge"}, TypeUrl: resources.SecretType, ResourceNamesSubscribe: []string{resources.EdgeSecret},
	}))
	versions := make(map[string]bool)
	for range 2 {
		r := testkit.Must(stream.Recv())
		if len(r.GetResources()) != 1 {
			t.Fatalf("sent %v", r)
		}
		versions[r.GetResources()[0].GetVersion()] = true
		testkit.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.SecretType, ResponseNonce: r.GetNonce()}))
		testkit.NoError(t, c.SetEdgeCertificate(edgeCertificate("second")))
	}
	if len(versions) != 2 {
		t.Errorf("versions %v", versions)
	}
	if c.SetEdgeCertificate(nil) == nil {
		t.Error("SetEdgeCertificate accepted nil")
	}
	plain := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 1).list})
	if plain.SetEdgeCertificate(edgeCertificate("third")) == nil {
		t.Error("SetEdgeCertificate accepted a certificate for a plain-text listener")
	}
}

// TestAttackEdgeKeyConfig checks that a Control does not start with a key for which no
// client would have to prove that it is a listed proxy.
func TestAttackEdgeKeyConfig(t *testing.T) {
	list := newFakeFleet(t, 1).list
	for name, edit := range map[string]func(*Config){
		"plain text":      func(c *Config) { c.TLS, c.TrustDomain = nil, "" },
		"no trust domain": func(c *Config) { c.TrustDomain = "" },
		"no proxies":      func(c *Config) { c.Proxies = nil },
		"every proxy":     func(c *Config) { c.Proxies = []string{"edge", "*"} },
	} {
		c := Config{
			Rules: fastRules(), Replicas: list, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Settings: resources.Settings{Listen: "127.0.0.1:0"},
			TLS: &tls.Config{}, TrustDomain: issuer.TrustDomain, Proxies: []string{"edge"}, EdgeCertificate: edgeCertificate("x"),
		}
		edit(&c)
		got, err := New(c)
		if err == nil {
			got.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "edge certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAttackEdgeKey asks for the key of the edge by every service and protocol: as a
// proxy that is not listed, as one that names a listed node, and as a migrator.
func TestAttackEdgeKey(t *testing.T) {
	c, a := startEdge(t)
	type recv func() (int, error)
	delta := func(s grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse], err error) func(string, string) recv {
		testkit.NoError(t, err)
		return func(node, cluster string) recv {
			_ = s.Send(&discoveryv3.DeltaDiscoveryRequest{
				Node: &corev3.Node{Id: node, Cluster: cluster}, TypeUrl: resources.SecretType, ResourceNamesSubscribe: []string{"*", resources.EdgeSecret},
			}) // Recv returns why it fails
			return func() (int, error) { r, err := s.Recv(); return len(r.GetResources()), err }
		}
	}
	sotw := func(s grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse], err error) func(string, string) recv {
		testkit.NoError(t, err)
		return func(node, cluster string) recv {
			_ = s.Send(&discoveryv3.DiscoveryRequest{
				Node: &corev3.Node{Id: node, Cluster: cluster}, TypeUrl: resources.SecretType, ResourceNames: []string{resources.EdgeSecret},
			})
			// A missing secret is not answered; the answer about another type shows that it was passed over.
			_ = s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resources.ClusterType})
			return func() (int, error) {
				r, err := s.Recv()
				if r.GetTypeUrl() == resources.SecretType {
					return len(r.GetResources()), err
				}
				return 0, err
			}
		}
	}
	for _, client := range []struct {
		role             identity.Role
		own, claims      string
		wantKey, wantEnd bool
	}{
		{identity.Proxy, "edge", "edge", true, false},
		{identity.Proxy, "edge-7", "edge-7", true, false},
		{identity.Proxy, "mesh", "mesh", false, false},
		{identity.Proxy, "edge/7", "edge/7", false, false},
		{identity.Proxy, "mesh", "edge", false, true},
		{identity.Migrator, "edge", identity.MigratorNodeID("edge"), false, true},
		{identity.Operator, "edge", "edge", false, true},
	} {
		conn := dialAs(t, c, a, client.role, client.own)
		ads, sds := discoveryv3.NewAggregatedDiscoveryServiceClient(conn), secretv3.NewSecretDiscoveryServiceClient(conn)
		cluster := ""
		if client.role == identity.Migrator {
			cluster = resources.ObserverCluster
		}
		asks := map[string]func(string, string) recv{
			"delta ADS": delta(ads.DeltaAggregatedResources(t.Context())),
			"SotW ADS":  sotw(ads.StreamAggregatedResources(t.Context())),
			"delta SDS": delta(sds.DeltaSecrets(t.Context())),
		}
		for by, ask := range asks {
			keys, err := ask(client.claims, cluster)()
			if client.wantEnd != (status.Code(err) == codes.PermissionDenied) || !client.wantEnd && err != nil || (keys > 0) != client.wantKey {
				t.Errorf("%s %s as node %s by %s: %d secrets, %v", client.role, client.own, client.claims, by, keys, err)
			}
		}
	}
	if n := c.secretsRefused.Load(); n < 6 {
		t.Errorf("%d refusals counted, want 6", n)
	}
	requireAudited(t, c, "client | secret | refused | the node is not a listed proxy | mesh |  | false", "client |  | refused | spiffe://fleet.test/operator/edge may not call ")
}
