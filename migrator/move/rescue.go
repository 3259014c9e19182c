package move

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// RecordRescue records the rescue of a stream of this replica's front end that had lost
// its engine. It never blocks and may be called concurrently, even when Run does not run.
func (m *Executor) RecordRescue(r frontend.Rescue) {
	_, span := m.cfg.Tracer.Start(frontend.ContextWithTrace(context.Background(), r.Trace), "migration.rescue", trace.WithTimestamp(r.Start), trace.WithAttributes(
		attribute.String("cascade.request", r.Stream), attribute.String("cascade.from", string(r.From)), attribute.String("cascade.to", string(r.To)),
		attribute.Int64("cascade.tokens", int64(r.Length)), attribute.Float64("cascade.stall_seconds", r.Duration.Seconds())))
	if r.Err != nil {
		span.RecordError(r.Err)
		span.SetStatus(codes.Error, "the stream ends")
	}
	span.End(trace.WithTimestamp(r.Start.Add(r.Duration)))
	m.records.recordRescue(r, span)
}

func (r *records) recordRescue(x frontend.Rescue, span trace.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.Err != nil {
		r.stats.Lost++
		return
	}
	r.stats.Rescued++
	r.addStall(x.Duration, span)
}
