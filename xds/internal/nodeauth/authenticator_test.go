package nodeauth

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The methods that are tried, by name.
const (
	ads     = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	adsSotW = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	rds     = "/envoy.service.route.v3.RouteDiscoveryService/DeltaRoutes"
	sds     = "/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets"
	lrs     = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"
	report  = api.Fleet_Report_FullMethodName
	fetch   = api.Modules_Fetch_FullMethodName
)

// countingServices answers each message of any method, counts them, and ends a
// stream as go-control-plane's server does: without an error.
type countingServices struct{ got atomic.Int64 }

func (e *countingServices) serve(_ any, s grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(s)
	for {
		var m proto.Message = new(discoveryv3.DeltaDiscoveryRequest)
		switch name {
		case adsSotW:
			m = new(discoveryv3.DiscoveryRequest)
		case lrs:
			m = new(loadv3.LoadStatsRequest)
		case report:
			m = new(api.LoadReport)
		case fetch:
			m = new(api.FetchRequest)
		}
		if err := s.RecvMsg(m); err != nil {
			return nil
		}
		e.got.Add(1)
		if err := s.SendMsg(new(emptypb.Empty)); err != nil {
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
	server := grpc.NewServer(append(w.binder.Options(), grpc.UnknownServiceHandler(w.service.serve))...)
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

// exchange sends messages, each after the reply to the one before, and returns
// how the stream ends.
func exchange(conn *grpc.ClientConn, method string, messages ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	for _, msg := range messages {
		if err := s.SendMsg(msg); err != nil {
			return s.RecvMsg(new(emptypb.Empty))
		}
		if err := s.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if err := s.RecvMsg(new(emptypb.Empty)); err != io.EOF {
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
		method   string
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
		{"r0", fetch, []any{&api.FetchRequest{}}, 1, ""},
		{"edge", fetch, []any{&api.FetchRequest{}}, 0, "may not call"},
		{"control", fetch, []any{&api.FetchRequest{}}, 0, "may not call"},
		{"operator", fetch, []any{&api.FetchRequest{}}, 0, "may not call"},
		{"stranger", fetch, []any{&api.FetchRequest{}}, 0, "spiffe://fleet.test/* is wanted"},
		{"control", ads, []any{deltaRequest(node("main", ""), routes)}, 0, "may not call"},
		{"operator", ads, []any{deltaRequest(node("ann", ""), routes)}, 0, "may not call"},
		{"stranger", ads, []any{deltaRequest(node("edge", ""), routes)}, 0, "spiffe://fleet.test/* is wanted"},
		{"unnamed", ads, []any{deltaRequest(node("edge", ""), routes)}, 0, "0 URI names"},
		{"both", ads, []any{deltaRequest(node("edge", ""), routes)}, 0, "2 URI names"},
		{"edge", ads, []any{deltaRequest(node(strings.Repeat("e", 1<<20), ""), routes)}, 0, `e", but the certificate`},
	} {
		before := w.service.got.Load()
		err := exchange(conns[c.who], c.method, c.messages...)
		reached := int(w.service.got.Load() - before)
		if c.want == "" && err != nil || c.want != "" && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1024) {
			t.Errorf("%s at %s: %.300v, want %q", c.who, c.method, err, c.want)
		}
		if reached != c.reached {
			t.Errorf("%s at %s: %d messages reached the service, want %d", c.who, c.method, reached, c.reached)
		}
	}
	for who, allowed := range map[string]bool{"edge": true, "r0": true, "operator": true, "stranger": false} {
		_, err := healthv1.NewHealthClient(conns[who]).Check(t.Context(), &healthv1.HealthCheckRequest{})
		if (err == nil) != allowed {
			t.Errorf("health check by %s: %v", who, err)
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
		conn := testkit.Must(w.listener.Dial())
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
	conn := testkit.Must(w.listener.Dial())
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
