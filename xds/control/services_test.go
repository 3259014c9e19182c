package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestLengthService checks that with the estimator ext_proc the gRPC port
// answers length requests with the ratio that the fleet has learnt.
func TestLengthService(t *testing.T) {
	f := newFakeFleet(t, 1)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Settings: resources.Settings{Estimator: resources.ExtProc}})
	if got := estimateTokens(t, c.Addr().String(), insecure.NewCredentials()); got != "1000" {
		t.Errorf("4000 bytes are %s tokens, want 1000 at the default ratio", got)
	}
	f.setReports(skewReport)
	f.setReports(func(m *api.LoadReport) { m.BytesPerToken = 2 })
	f.startReports(t, c)
	s := waitFor(t, c, "the learnt ratio", func(s Status) bool { return s.Models[0].BytesPerToken < 3 })
	want := length.Estimator{BytesPerToken: length.RatioOf(s.Models[0].BytesPerToken)}.FromContentLength(4000).String()
	if got := estimateTokens(t, c.Addr().String(), insecure.NewCredentials()); got != want {
		t.Errorf("4000 bytes are %s tokens, want %s", got, want)
	}
}

// estimateTokens sends a body of 4,000 bytes to the length service.
func estimateTokens(t *testing.T, address string, creds credentials.TransportCredentials) string {
	t.Helper()
	conn := testkit.Must(grpc.NewClient(address, grpc.WithTransportCredentials(creds)))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	stream := testkit.Must(extproc.NewExternalProcessorClient(conn).Process(ctx, grpc.WaitForReady(true)))
	header := func(k, v string) *corev3.HeaderValue { return &corev3.HeaderValue{Key: k, RawValue: []byte(v)} }
	if err := stream.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
		Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			header(":method", "POST"), header(":path", "/v1/completions"), header(":authority", "any.example"),
			header("content-type", "application/json"), header("content-length", "4000"),
		}},
	}}}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	testkit.NoError(t, err)
	for _, h := range resp.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == length.TokensHeader {
			return string(h.GetHeader().GetRawValue())
		}
	}
	t.Fatalf("no %s in %v", length.TokensHeader, resp)
	return ""
}

// TestTLS checks that with TLS the gRPC port refuses plain text and the length
// service has a port of its own.
func TestTLS(t *testing.T) {
	server, client := newTLSConfigs(t)
	f := newFakeFleet(t, 1)
	c := startControl(t, Config{
		Rules: fastRules(), Replicas: f.list, TLS: server, Length: "127.0.0.1:0",
		Settings: resources.Settings{Estimator: resources.ExtProc, LengthTimeout: time.Minute},
	})
	check := func(creds credentials.TransportCredentials, opts ...grpc.CallOption) error {
		conn := testkit.Must(grpc.NewClient(c.Addr().String(), grpc.WithTransportCredentials(creds)))
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, opts...)
		return err
	}
	if err := check(credentials.NewTLS(client), grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	if err := check(insecure.NewCredentials()); err == nil {
		t.Error("plain-text call succeeded")
	}
	if got := estimateTokens(t, c.lengthListener.Addr().String(), insecure.NewCredentials()); got != "1000" {
		t.Errorf("length service returned %s", got)
	}
}

// newTLSConfigs returns a server's and a client's TLS configuration.
func newTLSConfigs(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der := testkit.Must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	cert := testkit.Must(x509.ParseCertificate(der))
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13},
		&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
}

// TestStopWithStreams checks that Run ends although clients keep their streams
// open.
func TestStopWithStreams(t *testing.T) {
	f := newFakeFleet(t, 2)
	c, err := New(Config{
		Rules: fastRules(), Replicas: f.list, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Stop: time.Hour,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	testkit.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r := &runningControl{Control: c}
	f.startReports(t, r)
	d := openDelta(t, r)
	d.subscribeAll(t, nil)
	waitFor(t, r, "reports", func(s Status) bool {
		all := s.Models[0].Stages[0].Replicas
		return all[0].Connected && all[1].Connected
	})
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(waitTimeout):
		t.Fatal("Run waited for its clients")
	}
}
