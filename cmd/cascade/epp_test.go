package main

import (
	"crypto/tls"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func dial(t *testing.T, address string, c credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn := testkit.Must(grpc.NewClient(address, grpc.WithTransportCredentials(c)))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// pickOn opens a stream for a request without a body and returns it with the destination, "" if
// no endpoint is ready.
func pickOn(t *testing.T, conn *grpc.ClientConn) (extproc.ExternalProcessor_ProcessClient, string) {
	t.Helper()
	stream := testkit.Must(extproc.NewExternalProcessorClient(conn).Process(t.Context()))
	testkit.NoError(t, stream.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extproc.HttpHeaders{Headers: &corev3.HeaderMap{}, EndOfStream: true},
	}}))
	answer := testkit.Must(stream.Recv())
	for _, h := range answer.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.Header.Key == "x-gateway-destination-endpoint" {
			return stream, string(h.Header.RawValue)
		}
	}
	if got := answer.GetImmediateResponse().GetStatus().GetCode(); got != 503 {
		t.Fatalf("neither a destination nor 503 in %v", answer)
	}
	return stream, ""
}

// TestEPP runs an endpoint picker as the reference picker's Helm chart starts one. It picks the
// fleet's replica, still when the control plane is gone, and a signal cuts no response.
func TestEPP(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	start(t, "engine", "-c", s.file, "--replica", "r0")
	start(t, "migrator", "-c", s.file, "--replica", "r0", "--log", "error")
	plane := start(t, "control", "-c", s.file)
	a := testkit.Addresses(t, 3)
	epp := start(t, "epp", "-c", s.file, "--log", "error", "--node-id", "edge", "--grpc-port", portOf(a[0]), "--grpc-health-port", portOf(a[1]), "--metrics-port", portOf(a[2]),
		"--pool-name", "llama", "--pool-namespace", "default", "--pool-group", "inference.networking.k8s.io",
		"--zap-encoder", "json", "--config-file", "/config/default-plugins.yaml", "--tracing=false", "--metrics-endpoint-auth=false", "--ha-enable-leader-election", "--v", "1")
	awaitURL(t, "http://"+a[2]+"/readyz", "ready")
	// A control plane that has just started assumes that replicas are healthy, until they report.
	awaitURL(t, "http://"+s.admin+"/status", `"health": "healthy".*"report_age_seconds".*"id": "edge".*"current": true`)
	probe := func(address string) healthpb.HealthCheckResponse_ServingStatus {
		r, err := healthpb.NewHealthClient(dial(t, address, insecure.NewCredentials())).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "inference-extension"})
		testkit.NoError(t, err)
		return r.Status
	}
	for _, address := range a[:2] {
		if got := probe(address); got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%s reports %v", address, got)
		}
	}
	conn := dial(t, a[0], insecure.NewCredentials())
	testkit.WaitFor(t, "the replica to be picked", func() bool {
		stream, to := pickOn(t, conn)
		_ = stream.CloseSend()
		return to == s.front
	})
	awaitURL(t, "http://"+a[2]+"/metrics", `cascade_endpoint_picker_requests_total\{outcome="picked"\} [1-9]`)
	awaitURL(t, "http://"+a[2]+"/metrics", `cascade_endpoint_picker_control_plane_connected 1`)
	plane.end()
	awaitURL(t, "http://"+a[2]+"/metrics", `cascade_endpoint_picker_control_plane_connected 0`)
	stream, to := pickOn(t, conn)
	if to != s.front {
		t.Errorf("without the control plane: %q, want %q", to, s.front)
	}

	epp.stop()
	testkit.WaitFor(t, "the picker to report that it does not serve", func() bool { return probe(a[1]) == healthpb.HealthCheckResponse_NOT_SERVING })
	testkit.NoError(t, stream.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{}}}))
	if r, err := stream.Recv(); err != nil || r.GetResponseHeaders() == nil {
		t.Errorf("a response while the picker ends: %v, %v", r, err)
	}
	testkit.NoError(t, stream.CloseSend())
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	epp.end()
}

// TestEPPSecureServing connects with TLS to a self-signed picker, which a client in plain text
// cannot use.
func TestEPPSecureServing(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	a := testkit.Addresses(t, 3)
	start(t, "epp", "--control", s.control, "--log", "error", "--node-id", "edge", "--secure-serving",
		"--grpc-port", portOf(a[0]), "--grpc-health-port", portOf(a[1]), "--metrics-port", portOf(a[2]))
	awaitURL(t, "http://"+a[2]+"/healthz", "ok")
	check := func(c credentials.TransportCredentials) error {
		_, err := healthpb.NewHealthClient(dial(t, a[0], c)).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err
	}
	testkit.NoError(t, check(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err := check(insecure.NewCredentials()); err == nil {
		t.Error("the picker answers in plain text")
	}
	if err := check(credentials.NewTLS(&tls.Config{ServerName: "cascade-epp"})); err == nil {
		t.Error("a client trusts the self-signed certificate")
	}
}

// TestDeployGateway checks that Envoy accepts the gateway of deploy.
func TestDeployGateway(t *testing.T) {
	envoytest.Validate(t, string(testkit.Must(os.ReadFile(filepath.Join("..", "..", "deploy", "gateway", "envoy.yaml")))))
}
