package frontend

import (
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Served is how fast a client was served, whatever became of its request on the way:
// migrations and rescues are included.
type Served struct {
	// FirstToken is the time from the request's arrival to the first event of its answer.
	FirstToken time.Duration
	// PerToken is the mean time between the tokens after the first; 0 if there were none.
	PerToken time.Duration
	// Span is that of the request; it is not valid without tracing.
	Span trace.SpanContext
}

// reportServed reports a stream that has ended, whose answer began at first.
func (s *Stream) reportServed(first time.Time) {
	report := s.server.cfg.OnServed
	if report == nil {
		return
	}
	out := Served{FirstToken: first.Sub(s.begun), Span: trace.SpanContextFromContext(s.ctx)}
	if n := s.Request().Output; n > 1 {
		out.PerToken = time.Since(first) / time.Duration(n-1)
	}
	report(out)
}
