package nodeauth

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// countingServices counts the messages that reach it, and ends a stream as
// go-control-plane's server does: without an error.
type countingServices struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	routev3.UnimplementedRouteDiscoveryServiceServer
	secretv3.UnimplementedSecretDiscoveryServiceServer
	loadv3.UnimplementedLoadReportingServiceServer
	api.UnimplementedFleetServer
	api.UnimplementedModulesServer

	mu  sync.Mutex
	got int
}

func (e *countingServices) count() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got++
}

func (e *countingServices) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return drain(e, s.Recv, func() error { return s.Send(&discoveryv3.DeltaDiscoveryResponse{}) })
}

func (e *countingServices) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return drain(e, s.Recv, func() error { return s.Send(&discoveryv3.DiscoveryResponse{}) })
}

func (e *countingServices) DeltaRoutes(s routev3.RouteDiscoveryService_DeltaRoutesServer) error {
	return drain(e, s.Recv, func() error { return s.Send(&discoveryv3.DeltaDiscoveryResponse{}) })
}

func (e *countingServices) DeltaSecrets(s secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	return drain(e, s.Recv, func() error { return s.Send(&discoveryv3.DeltaDiscoveryResponse{}) })
}

func (e *countingServices) StreamLoadStats(s loadv3.LoadReportingService_StreamLoadStatsServer) error {
	return drain(e, s.Recv, func() error { return s.Send(&loadv3.LoadStatsResponse{}) })
}

func (e *countingServices) Report(s api.Fleet_ReportServer) error {
	return drain(e, s.Recv, func() error { return s.Send(&api.LoadReply{}) })
}

func (e *countingServices) Fetch(_ *api.FetchRequest, s api.Modules_FetchServer) error {
	e.count()
	return s.Send(&api.Chunk{})
}

func drain[M any](e *countingServices, recv func() (M, error), reply func() error) error {
	for {
		if _, err := recv(); err != nil {
			return nil
		}
		e.count()
		if err := reply(); err != nil {
			return err
		}
	}
}

// harness is a server with an Authenticator, and its certificate authority.
type harness struct {
	t        *testing.T
	a        *issuer.Authority
	binder   *Authenticator
	service  *countingServices
	listener *bufconn.Listener
	log      bytes.Buffer
	reported atomic.Int64 // refusals
	stop     func()
}

// report counts a refusal, which must say who was refused, from where, and why.
func (w *harness) report(client, address string, why error) {
	if client == "" || address == "" || why == nil {
		w.t.Errorf("refusal of %q at %q: %v", client, address, why)
	}
	w.reported.Add(1)
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	w := &harness{t: t, a: issuer.New(t), service: &countingServices{}}
	var err error
	tls := w.a.ServerTLS(w.a.ComponentCertificate(t, identity.Control, "main"))
	if w.binder, err = New(Config{TrustDomain: issuer.TrustDomain, TLS: tls, OnRefusal: w.report, Logger: slog.New(slog.NewTextHandler(&w.log, nil))}); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(w.binder.Options()...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, w.service)
	routev3.RegisterRouteDiscoveryServiceServer(server, w.service)
	secretv3.RegisterSecretDiscoveryServiceServer(server, w.service)
	loadv3.RegisterLoadReportingServiceServer(server, w.service)
	api.RegisterFleetServer(server, w.service)
	api.RegisterModulesServer(server, w.service)
	healthv1.RegisterHealthServer(server, health.NewServer())
	w.listener, w.stop = memgrpc.Listen(t, server)
	return w
}

// dial connects with a certificate.
func (w *harness) dial(own tls.Certificate) *grpc.ClientConn {
	w.t.Helper()
	want := identity.Matcher{TrustDomain: issuer.TrustDomain, Role: identity.Control}
	return memgrpc.Dial(w.t, w.listener, credentials.NewTLS(w.a.ClientTLS(own, want)))
}

// method opens a stream.
type method struct{ name string }

var (
	ads     = method{"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"}
	adsSotW = method{"/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"}
	rds     = method{"/envoy.service.route.v3.RouteDiscoveryService/DeltaRoutes"}
	sds     = method{"/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets"}
	lrs     = method{"/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"}
	report  = method{"/" + api.Fleet_ServiceDesc.ServiceName + "/Report"}
)

// exchange sends messages, each after the reply to the one before, and returns
// how the stream ends.
func exchange(conn *grpc.ClientConn, m method, messages ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, m.name)
	if err != nil {
		return err
	}
	answer := func() any {
		switch m {
		case adsSotW:
			return new(discoveryv3.DiscoveryResponse)
		case lrs:
			return new(loadv3.LoadStatsResponse)
		case report:
			return new(api.LoadReply)
		}
		return new(discoveryv3.DeltaDiscoveryResponse)
	}
	for _, msg := range messages {
		if err := s.SendMsg(msg); err != nil {
			return s.RecvMsg(answer())
		}
		if err := s.RecvMsg(answer()); err != nil {
			return err
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if err := s.RecvMsg(answer()); err != io.EOF {
		return err
	}
	return nil
}

func node(id, cluster string) *corev3.Node { return &corev3.Node{Id: id, Cluster: cluster} }

func deltaRequest(n *corev3.Node, typ string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: typ}
}

// TestIdentities checks which identity may call which service under which name.
// The certificate is the first field.
func TestIdentities(t *testing.T) {
	w := newHarness(t)
	certs := map[string]tls.Certificate{
		"edge": w.a.ComponentCertificate(t, identity.Proxy, "edge"), "r0": w.a.ComponentCertificate(t, identity.Migrator, "r0"),
		"impostor": w.a.ComponentCertificate(t, identity.Proxy, "migrator/r0"),
		"control":  w.a.ComponentCertificate(t, identity.Control, "main"), "operator": w.a.ComponentCertificate(t, identity.Operator, "ann"),
		"stranger": w.a.Certificate(t, "spiffe://other.test/proxy/edge"), "unnamed": w.a.Certificate(t),
		"both": w.a.Certificate(t, "spiffe://fleet.test/proxy/edge", "spiffe://fleet.test/proxy/edge-2"),
	}
	conns := make(map[string]*grpc.ClientConn)
	for name, cert := range certs {
		conns[name] = w.dial(cert)
	}
	routes, observer := resources.RouteType, resources.ObserverCluster
	for _, c := range []struct {
		who      string
		m        method
		messages []any
		reached  int    // messages that reach the service
		want     string // of the refusal; "" for none
	}{
		{"edge", ads, []any{deltaRequest(node("edge", "cascade"), routes), deltaRequest(nil, routes), deltaRequest(node("edge", "cascade"), resources.SecretType)}, 3, ""},
		{"edge", adsSotW, []any{&discoveryv3.DiscoveryRequest{Node: node("edge", "")}, &discoveryv3.DiscoveryRequest{}}, 2, ""},
		{"edge", rds, []any{deltaRequest(node("edge", ""), "")}, 1, ""},
		{"edge", sds, []any{deltaRequest(node("edge", ""), "")}, 1, ""},
		{"edge", lrs, []any{&loadv3.LoadStatsRequest{Node: node("edge", "")}, &loadv3.LoadStatsRequest{}}, 2, ""},
		{"r0", ads, []any{deltaRequest(node("migrator/r0", observer), routes), deltaRequest(nil, resources.ListenerType)}, 2, ""},
		{"r0", report, []any{&api.LoadReport{Replica: "r0"}, &api.LoadReport{Replica: "r0"}}, 2, ""},
		{"impostor", ads, []any{deltaRequest(node("migrator/r0", "cascade"), routes)}, 1, ""}, // a proxy of that name, which has the rights of a proxy

		{"edge", ads, []any{deltaRequest(node("edge-2", ""), routes)}, 0, `message from "edge-2", but the certificate is spiffe://fleet.test/proxy/edge, whose name here is "edge"`},
		{"edge", ads, []any{deltaRequest(nil, routes)}, 0, "carries no name"},
		{"edge", ads, []any{deltaRequest(node("", ""), routes)}, 0, "carries no name"},
		{"edge", ads, []any{deltaRequest(node("edge", ""), routes), deltaRequest(node("edge-2", ""), routes)}, 1, `from "edge-2"`},
		{"edge", adsSotW, []any{&discoveryv3.DiscoveryRequest{Node: node("edge-2", "")}}, 0, `from "edge-2"`},
		{"edge", rds, []any{deltaRequest(node("migrator/r0", observer), "")}, 0, `from "migrator/r0"`},
		{"edge", lrs, []any{&loadv3.LoadStatsRequest{Node: node("edge-2", "")}}, 0, `from "edge-2"`},
		{"edge", lrs, []any{&loadv3.LoadStatsRequest{}}, 0, "carries no name"},
		{"edge", report, []any{&api.LoadReport{Replica: "edge"}}, 0, "may not call"},
		{"impostor", report, []any{&api.LoadReport{Replica: "r0"}}, 0, "may not call"},
		{"r0", ads, []any{deltaRequest(node("r0", observer), routes)}, 0, `from "r0"`},
		{"r0", ads, []any{deltaRequest(node("migrator/r1", observer), routes)}, 0, `from "migrator/r1"`},
		{"r0", ads, []any{deltaRequest(node("migrator/r0", "cascade"), routes)}, 0, `node cluster "cascade": must be`},
		{"r0", ads, []any{deltaRequest(node("migrator/r0", observer), routes), deltaRequest(nil, resources.SecretType)}, 1, "secrets"},
		{"r0", sds, []any{deltaRequest(node("migrator/r0", observer), "")}, 0, "may not call"},
		{"r0", lrs, []any{&loadv3.LoadStatsRequest{Node: node("migrator/r0", observer)}}, 0, "may not call"},
		{"r0", report, []any{&api.LoadReport{Replica: "r1"}}, 0, `from "r1"`},
		{"r0", report, []any{&api.LoadReport{Replica: "r0"}, &api.LoadReport{Replica: "r1"}}, 1, `from "r1"`},
		{"r0", report, []any{&api.LoadReport{}}, 0, "carries no name"},
		{"control", ads, []any{deltaRequest(node("main", ""), routes)}, 0, "may not call"},
		{"operator", ads, []any{deltaRequest(node("ann", ""), routes)}, 0, "may not call"},
		{"stranger", ads, []any{deltaRequest(node("edge", ""), routes)}, 0, "spiffe://fleet.test/* is wanted"},
		{"unnamed", ads, []any{deltaRequest(node("edge", ""), routes)}, 0, "0 URI names"},
		{"both", ads, []any{deltaRequest(node("edge", ""), routes)}, 0, "2 URI names"},
		{"edge", ads, []any{deltaRequest(node(strings.Repeat("e", 1<<20), ""), routes)}, 0, `e", but the certificate`},
	} {
		before := w.service.got
		err := exchange(conns[c.who], c.m, c.messages...)
		w.service.mu.Lock()
		reached := w.service.got - before
		w.service.mu.Unlock()
		if c.want == "" && err != nil || c.want != "" && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1024) {
			t.Errorf("%s at %s: %.300v, want %q", c.who, c.m.name, err, c.want)
		}
		if reached != c.reached {
			t.Errorf("%s at %s: %d messages reached the service, want %d", c.who, c.m.name, reached, c.reached)
		}
	}
	for who, allowed := range map[string]bool{"edge": true, "r0": true, "operator": true, "stranger": false} {
		_, err := healthv1.NewHealthClient(conns[who]).Check(t.Context(), &healthv1.HealthCheckRequest{})
		if (err == nil) != allowed {
			t.Errorf("health check by %s: %v", who, err)
		}
	}
	for who, allowed := range map[string]bool{"r0": true, "edge": false, "control": false, "operator": false, "stranger": false} {
		before := w.service.got
		stream, err := api.NewModulesClient(conns[who]).Fetch(t.Context(), &api.FetchRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if (err == nil) != allowed || !allowed && (status.Code(err) != codes.PermissionDenied || w.service.got != before) {
			t.Errorf("module fetch by %s: %v", who, err)
		}
	}
}

// TestRefusalsAreLogged checks that an identity that retries forever is
// logged once a minute and disturbs no other stream.
func TestRefusalsAreLogged(t *testing.T) {
	w := newHarness(t)
	good, bad := w.dial(w.a.ComponentCertificate(t, identity.Proxy, "edge")), w.dial(w.a.ComponentCertificate(t, identity.Proxy, "edge-2"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(good).DeltaAggregatedResources(ctx)
	testkit.NoError(t, err)
	say := func() {
		t.Helper()
		testkit.NoError(t, s.Send(deltaRequest(node("edge", ""), resources.RouteType)))
		if _, err := s.Recv(); err != nil {
			t.Fatalf("idle stream: %v", err)
		}
	}
	say()
	for range 20 {
		if err := exchange(bad, ads, deltaRequest(node("edge", ""), resources.RouteType)); status.Code(err) != codes.PermissionDenied {
			t.Fatalf("wrong node id: %v", err)
		}
		say()
	}
	if got := w.reported.Load(); got != 20 {
		t.Errorf("%d refusals reported", got)
	}
	if got := w.binder.Refused(); got != 20 {
		t.Errorf("%d refused, want 20", got)
	}
	cancel()
	w.stop()
	if lines := strings.Count(w.log.String(), "\n"); lines != 20 || !strings.Contains(w.log.String(), "spiffe://fleet.test/proxy/edge-2") {
		t.Errorf("%d lines:\n%s", lines, w.log.String())
	}
}

// TestHandshakesAreLogged checks that clients with a certificate of another
// authority, without one, and with plain text are refused. All of them are on
// one host and logged once. A client that only connects, or rejects the server,
// is not logged.
func TestHandshakesAreLoggedOnce(t *testing.T) {
	w := newHarness(t)
	good := w.dial(w.a.ComponentCertificate(t, identity.Proxy, "edge"))
	for range 3 {
		conn, err := w.listener.Dial()
		testkit.NoError(t, err)
		conn.Close()
	}
	wary := w.a.ClientTLS(w.a.ComponentCertificate(t, identity.Proxy, "edge"), identity.Matcher{TrustDomain: "other.test"})
	for name, c := range map[string]*tls.Config{
		"wary": wary, "a stranger": w.a.ClientTLS(issuer.New(t).ComponentCertificate(t, identity.Proxy, "edge"), identity.Matcher{TrustDomain: issuer.TrustDomain}),
		"unnamed": w.a.ClientTLS(tls.Certificate{}, identity.Matcher{TrustDomain: issuer.TrustDomain}),
	} {
		conn, err := w.listener.Dial()
		testkit.NoError(t, err)
		secure := tls.Client(conn, c)
		if _, err = io.Copy(io.Discard, secure); err == nil {
			t.Errorf("%s was accepted", name)
		}
		conn.Close()
	}
	// Clients read of their refusal before it is recorded.
	testkit.WaitFor(t, "two refusals", func() bool { return w.binder.Refused() == 2 })
	conn, err := w.listener.Dial()
	testkit.NoError(t, err)
	io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	io.Copy(io.Discard, conn)
	conn.Close()
	if err := exchange(good, ads, deltaRequest(node("edge", ""), resources.RouteType)); err != nil {
		t.Errorf("idle stream: %v", err)
	}
	w.stop()
	if r := w.binder.LastRefusal(); r == nil || !errors.Is(r.Err, ErrPlainText) || !strings.Contains(w.log.String(), "client refused: it does not speak TLS") {
		t.Errorf("the client with plain text: %+v\n%s", r, w.log.String())
	}
	if got := w.binder.Refused(); got != 3 {
		t.Errorf("%d refused, want 3", got)
	}
	if lines := strings.Count(w.log.String(), "\n"); lines != 3 {
		t.Errorf("%d lines:\n%s", lines, w.log.String())
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{TrustDomain: "Fleet", TLS: &tls.Config{}}); err == nil {
		t.Error("New accepted an invalid trust domain")
	}
	if _, err := New(Config{TrustDomain: "fleet.test"}); err == nil {
		t.Error("New accepted a configuration without TLS")
	}
}
