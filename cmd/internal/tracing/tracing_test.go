package tracing

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver is a collector that keeps what comes.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.ResourceSpans
}

// Export implements collector.TraceServiceServer.
func (r *receiver) Export(_ context.Context, m *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, m.ResourceSpans...)
	return &collector.ExportTraceServiceResponse{}, nil
}

// TestSpansReachTheCollector exports a span as the environment says.
func TestSpansReachTheCollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	r, server := &receiver{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	defer wg.Wait()
	defer server.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")

	tr, err := New(t.Context(), Config{Replica: "r0", Version: "v1"})
	testkit.NoError(t, err)
	_, span := tr.Tracer("mover").Start(t.Context(), "move")
	span.End()
	tr.Close()
	if len(r.spans) != 1 {
		t.Fatalf("%d exports", len(r.spans))
	}
	got := map[string]string{}
	for _, a := range r.spans[0].Resource.Attributes {
		got[a.Key] = a.Value.GetStringValue()
	}
	for key, want := range map[string]string{"service.name": "cascade", "service.version": "v1", "cascade.replica": "r0", "deployment.environment": "test"} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if s := r.spans[0].ScopeSpans[0]; s.Scope.Name != "mover" || s.Spans[0].Name != "move" {
		t.Errorf("%v", s)
	}
}

// TestNoCollector: spans are lost, with a word in the log, and nothing else.
func TestNoCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "50")
	var log bytes.Buffer
	tr, err := New(t.Context(), Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	testkit.NoError(t, err)
	_, span := tr.Tracer("mover").Start(t.Context(), "move")
	span.End()
	tr.Close()
	if !strings.Contains(log.String(), "span export failed") {
		t.Errorf("the log says %q", log.String())
	}
}

// TestNoEndpoint: without an endpoint there is no tracer, and what is there is
// of no harm.
func TestNoEndpoint(t *testing.T) {
	for _, env := range []map[string]string{
		{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317", "OTEL_SDK_DISABLED": "true"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317", "OTEL_TRACES_EXPORTER": "none"},
	} {
		for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"} {
			t.Setenv(name, env[name])
		}
		tr, err := New(t.Context(), Config{})
		if tr != nil || err != nil || tr.Tracer("x") != nil {
			t.Errorf("%v: %v, %v", env, tr, err)
		}
		tr.Close()
	}
}

// TestOtherExporters are refused by name.
func TestOtherExporters(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER=zipkin: must be otlp"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf: must be grpc"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", ""},
		{"OTEL_TRACES_EXPORTER", "otlp", ""},
	} {
		env := map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4317", c.name: c.value}
		on, err := enabled(func(name string) string { return env[name] })
		if on != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v, %v", c.name, c.value, on, err)
		}
	}
}
