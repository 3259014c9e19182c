package frontend

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
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
	defer func() {
		status := w.(*deadlineWriter).status // of withAnswer
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
	}()
	serve(w, r)
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

// The attributes of OpenTelemetry's semantic conventions for generative AI that spans of
// engine calls have (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans).
// Prompts and answers are never recorded.
const (
	genAIOperation = attribute.Key("gen_ai.operation.name")
	genAIProvider  = attribute.Key("gen_ai.provider.name")
	genAIModel     = attribute.Key("gen_ai.request.model")
	genAIMaxTokens = attribute.Key("gen_ai.request.max_tokens")
	genAIInput     = attribute.Key("gen_ai.usage.input_tokens")
	genAIOutput    = attribute.Key("gen_ai.usage.output_tokens")
	genAICached    = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	genAIFinish    = attribute.Key("gen_ai.response.finish_reasons")
)

// firstTokenEvent is the span event of the first token.
const firstTokenEvent = "first_token"

// genAIOperationOf returns the convention's name of what an endpoint does.
func genAIOperationOf(e openai.Endpoint) string {
	if e == openai.Chat {
		return "chat"
	}
	return "text_completion"
}

// beginSpan begins the span of the leg's call to this replica's engine. Its parent is the span
// in ctx: the request's, or that of a peer's leg. It becomes the parent of the engine's spans.
// Without a Tracer, and for warm-ups, no span begins.
func (r *localLeg) beginSpan(ctx context.Context, lr *legRequest) {
	tracer := r.server.cfg.Tracer
	if tracer == nil || r.warmup {
		return
	}
	operation, model := genAIOperationOf(lr.endpoint), strings.ToValidUTF8(r.request.Model, "\uFFFD")
	attributes := []attribute.KeyValue{
		genAIOperation.String(operation), genAIProvider.String(r.server.dialect().Capabilities().Name), genAIModel.String(model),
		attribute.String("cascade.replica", string(r.server.cfg.Replica)), attribute.String("cascade.leg", r.name), attribute.Int64("cascade.epoch", int64(lr.epoch)),
	}
	if r.request.MaxOutput > 0 {
		attributes = append(attributes, genAIMaxTokens.Int64(int64(r.request.MaxOutput)))
	}
	if host, port, err := net.SplitHostPort(r.server.engine.Host); err == nil {
		n, _ := strconv.Atoi(port)
		attributes = append(attributes, attribute.String("server.address", host), attribute.Int("server.port", n))
	}
	_, r.span = tracer.Start(ctx, strings.TrimSpace(operation+" "+model), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
}

// setTraceHeader makes the leg's span the parent of what the engine does.
func (r *localLeg) setTraceHeader(h http.Header) {
	if r != nil && r.span != nil {
		traceContext.Inject(trace.ContextWithSpan(context.Background(), r.span), propagation.HeaderCarrier(h))
	}
}

// noteFirstToken records when the first token came.
func (r *localLeg) noteFirstToken() {
	if r.span != nil {
		r.span.AddEvent(firstTokenEvent)
	}
}

// noteFinish records why the engine ended the answer.
func (r *localLeg) noteFinish(c *openai.Chunk) {
	if r.span != nil && r.span.IsRecording() {
		r.span.SetAttributes(genAIFinish.StringSlice([]string{strings.ToValidUTF8(c.FinishReason(), "\uFFFD")}))
	}
}

// errorTypeOf returns the kind of an error that ended a call: one of few, as the conventions ask.
func errorTypeOf(err error) string {
	for kind, of := range map[string]error{"canceled": context.Canceled, "timeout": errIdle, "hung": errHung, "no_progress": errNoProgress, "engine_away": errEngineAway, "replica_gone": errReplicaGone} {
		if errors.Is(err, of) {
			return kind
		}
	}
	return "_OTHER"
}

// endSpan ends the leg's span with what the engine has counted. moved is as in unregister.
func (r *localLeg) endSpan(moved bool) {
	if r.span == nil {
		return
	}
	n := r.work.Counts()
	r.span.SetAttributes(genAIOutput.Int64(int64(n.Output-r.earlier)), attribute.Bool("cascade.continued_elsewhere", moved))
	if n.Exact {
		r.span.SetAttributes(genAIInput.Int64(int64(n.Input+r.earlier)), genAICached.Int64(int64(n.Cached)))
	}
	if cause := r.call.cause.Load(); cause != nil {
		r.span.SetAttributes(attribute.String("error.type", errorTypeOf(*cause)))
		r.span.SetStatus(codes.Error, strings.ToValidUTF8((*cause).Error(), "\uFFFD"))
	}
	r.span.End()
}
