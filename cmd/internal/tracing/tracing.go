// Package tracing exports OpenTelemetry spans as configured by the standard
// environment variables.
//
// OTEL_EXPORTER_OTLP_ENDPOINT enables it; the OTLP exporter (gRPC), the sampler and
// the batcher read the other OTEL_* variables themselves. New returns a Tracing,
// whose Tracer creates spans.
//
// Invariant: an unreachable collector costs spans, never a request. The handler of
// export errors is the only global state.
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

// Config configures a Tracing.
type Config struct {
	// Replica names the replica of a migrator; "" for a process with several.
	Replica string
	// Version is the program's.
	Version string
	// Logger logs errors of exports; nil discards.
	Logger *slog.Logger
}

// Tracing exports the spans of one process. A nil Tracing exports none. Its
// methods are safe for concurrent use.
type Tracing struct {
	provider *sdktrace.TracerProvider
	log      *slog.Logger
}

// New returns nil where the environment does not enable tracing. It does not
// connect: the collector may start later. A Tracing must be closed.
func New(ctx context.Context, cfg Config) (*Tracing, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if on, err := enabled(os.Getenv); !on || err != nil {
		return nil, err
	}
	// WithFromEnv comes last: the environment overrides these attributes.
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
	// The default handler prints them.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { cfg.Logger.Warn("span export failed", "error", err) }))
	return &Tracing{provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res)), log: cfg.Logger}, nil
}

// enabled reports whether the environment enables tracing. The error names a
// setting that is not supported.
func enabled(env func(string) string) (bool, error) {
	if env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" ||
		strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none" {
		return false, nil
	}
	if e := env("OTEL_TRACES_EXPORTER"); e != "" && e != "otlp" {
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER=%s: must be otlp or none", e)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch p := env(name); p {
		case "grpc":
			return true, nil // the first takes precedence
		case "":
		default:
			return false, fmt.Errorf("%s=%s: must be grpc; use the collector's gRPC port, for instance 4317", name, p)
		}
	}
	return true, nil
}

// Tracer returns the tracer of one part of the process; nil for a nil Tracing.
func (t *Tracing) Tracer(part string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer(part)
}

// Close exports the last spans, within closeTimeout.
func (t *Tracing) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("export of the last spans failed", "error", err)
	}
}
