// Package tracing exports spans as the standard environment of OpenTelemetry
// says: OTEL_EXPORTER_OTLP_ENDPOINT switches it on, and the OTLP exporter (gRPC),
// the sampler and the batches read the rest of OTEL_* by themselves.
//
// It makes tracers and nothing global but the handler of export errors. The
// invariant it keeps: a collector that is away costs spans, never a request.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// closeTimeout bounds the export of the last spans.
const closeTimeout = 3 * time.Second

// Config says whose spans they are.
type Config struct {
	// Replica names the replica of a migrator; "" for a process with several.
	Replica string
	// Version is the program's.
	Version string
	// Logger takes the errors of exports; nil discards.
	Logger *slog.Logger
}

// Tracing is the spans of one process. A nil Tracing makes none. Its methods are
// safe for concurrent use.
type Tracing struct {
	provider *sdktrace.TracerProvider
	log      *slog.Logger
}

// New returns nil where the environment asks for no traces. It waits for
// nobody: the collector may come later. A Tracing must be closed.
func New(ctx context.Context, cfg Config) (*Tracing, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if on, err := enabled(os.Getenv); !on || err != nil {
		return nil, err
	}
	// What the environment names wins over what comes before it.
	about := []attribute.KeyValue{attribute.String("service.name", "cascade"), attribute.String("service.version", cfg.Version)}
	if cfg.Replica != "" {
		about = append(about, attribute.String("cascade.replica", cfg.Replica), attribute.String("service.instance.id", cfg.Replica))
	}
	res, err := resource.New(ctx, resource.WithAttributes(about...), resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	// By default they would be printed as they come.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { cfg.Logger.Warn("traces are not exported", "error", err) }))
	return &Tracing{provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res)), log: cfg.Logger}, nil
}

// enabled reports whether the environment asks for traces, and what of it cannot
// be done.
func enabled(env func(string) string) (bool, error) {
	if env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" ||
		strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none" {
		return false, nil
	}
	if e := env("OTEL_TRACES_EXPORTER"); e != "" && e != "otlp" {
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER=%s: only otlp and none are there", e)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch p := env(name); p {
		case "grpc":
			return true, nil // the first of them counts
		case "":
		default:
			return false, fmt.Errorf("%s=%s: only grpc is there; name the collector's gRPC port, for instance 4317", name, p)
		}
	}
	return true, nil
}

// Tracer makes the spans of one part of the process; nil where t is.
func (t *Tracing) Tracer(part string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer(part)
}

// Close exports the last spans, for some seconds at most, and ends.
func (t *Tracing) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("the last traces are not exported", "error", err)
	}
}
