package frontend

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// traceparent is the header field of the W3C's trace context: the span below which the
// sender does its work.
const traceparent = "Traceparent"

var traceContext propagation.TraceContext

// ContextWithTrace returns ctx with the span of a traceparent, as LocalLeg.Trace,
// Holder.Trace and Rescue.Trace have it, so that spans begun with it belong to the
// request's trace. Without one it returns ctx.
func ContextWithTrace(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return traceContext.Extract(ctx, propagation.HeaderCarrier{traceparent: {parent}})
}

// TraceOf returns the traceparent of ctx's span; "" for none.
func TraceOf(ctx context.Context) string {
	h := make(propagation.HeaderCarrier)
	traceContext.Inject(ctx, h)
	return h.Get(traceparent)
}

// withSpan serves a request as a span, which continues the trace of the client or of the
// front end that has sent the leg. Engines and other migrators see it as their parent,
// because legs carry the request's header.
func (srv *Server) withSpan(w http.ResponseWriter, r *http.Request, name string, serve http.HandlerFunc) {
	if srv.cfg.Tracer == nil {
		serve(w, r)
		return
	}
	ctx := traceContext.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := srv.cfg.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("cascade.replica", string(srv.cfg.Replica)), attribute.String("url.path", r.URL.Path)))
	defer span.End()
	if id := r.Header.Get(requestIDHeader); id != "" { // an exporter refuses text that is not UTF-8
		span.SetAttributes(attribute.String("cascade.request_id", strings.ToValidUTF8(id[:min(len(id), maxLoggedID)], "\uFFFD")))
	}
	r = r.WithContext(ctx)
	r.Header = r.Header.Clone()
	traceContext.Inject(ctx, propagation.HeaderCarrier(r.Header))
	s := &statusWriter{ResponseWriter: w}
	defer func() {
		span.SetAttributes(attribute.Int("http.response.status_code", s.status))
		if s.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(s.status))
		}
	}()
	serve(s, r)
}

// nameSpan adds a request's name in logs and migrations, and what it asks for, to its span.
func nameSpan(ctx context.Context, e openai.Endpoint, q policies.Request) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("cascade.request", q.ID), genAIOperation.String(genAIOperationOf(e)), genAIModel.String(strings.ToValidUTF8(q.Model, "\uFFFD")))
	}
}

// countInSpan adds what the client got, and how often another engine took over, to the span of
// a stream that has ended.
func (s *Stream) countInSpan(ctx context.Context) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	q := s.Request()
	if !q.Estimated {
		span.SetAttributes(genAIInput.Int64(int64(q.Input)))
	}
	span.SetAttributes(genAIOutput.Int64(int64(q.Output)), attribute.Int("cascade.splices", s.Splices()))
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *statusWriter) WriteHeader(status int) {
	if s.status == 0 && status >= http.StatusOK {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *statusWriter) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
