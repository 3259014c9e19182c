package proxy

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// maxSpanText bounds what a client chooses of a span.
const maxSpanText = 128

// beginSpan begins the span of the request, which continues the client's trace (the W3C's
// traceparent). The replica sees it as its parent. x.header is the upstream's.
func (x *exchange) beginSpan() {
	if x.p.cfg.Tracer == nil {
		return
	}
	var traceContext propagation.TraceContext
	ctx := traceContext.Extract(x.ctx, propagation.HeaderCarrier(x.r.Header))
	ctx, x.span = x.p.cfg.Tracer.Start(ctx, "proxy "+methodOf(x.r), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("url.path", bounded(x.r.URL.Path, maxSpanText))))
	traceContext.Inject(ctx, propagation.HeaderCarrier(x.header))
}

// endSpan ends the request's span, if it has one, with what became of the request.
func (x *exchange) endSpan() {
	if x.span == nil {
		return
	}
	x.span.SetAttributes(attribute.Int("http.response.status_code", x.code), attribute.Int("cascade.attempts",
		x.attempts),
		attribute.String("cascade.request_id", bounded(x.header.Get("X-Request-Id"), maxSpanText)),
		attribute.String("server.address", x.upstream))
	if x.stage != nil {
		x.span.SetAttributes(attribute.String("cascade.cluster", x.stage.name))
	}
	if x.code >= http.StatusInternalServerError {
		x.span.SetStatus(codes.Error, http.StatusText(x.code))
	}
	x.span.End()
}

// methodOf returns the method of a request, or a word for one that no route serves.
func methodOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost:
		return r.Method
	}
	return "other"
}

// bounded returns the beginning of a client's text, in memory of its own, as UTF-8: an exporter
// refuses all spans of a batch with one that holds anything else.
func bounded(text string, most int) string {
	if len(text) > most {
		text = strings.Clone(text[:most])
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
