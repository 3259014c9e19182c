package executor

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// RecordRescue takes note of a stream of the own front that had lost its engine: it
// moved without a market and without a source. It never blocks, and may be called
// by several at once, also while the mover does not run.
func (m *Executor) RecordRescue(r frontend.Rescue) {
	_, span := m.cfg.Tracer.Start(context.Background(), "move.rescue", trace.WithTimestamp(r.Start), trace.WithAttributes(
		attribute.String("cascade.request", r.Stream), attribute.String("cascade.from", string(r.From)), attribute.String("cascade.to", string(r.To)),
		attribute.Int64("cascade.tokens", int64(r.Length)), attribute.Float64("cascade.stall_seconds", r.Duration.Seconds())))
	if r.Err != nil {
		span.RecordError(r.Err)
		span.SetStatus(codes.Error, "the stream ends")
	}
	span.End(trace.WithTimestamp(r.Start.Add(r.Duration)))
	m.records.recordRescue(r)
}

func (r *records) recordRescue(x frontend.Rescue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.Err != nil {
		r.stats.Lost++
		return
	}
	r.stats.Rescued++
	r.stats.addStall(x.Duration)
}
