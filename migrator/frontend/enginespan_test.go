package frontend

import (
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// requireEngineSpans checks that each call to an engine is a client span below the span of its request, or
// of the leg that a peer has sent; that the engine sees it as its parent; that it has the convention's
// attributes, when the first token came, and why the call ended.
func (f *fleet) requireEngineSpans(s *Stream, ended []sdk.ReadOnlySpan) {
	t := f.t
	t.Helper()
	calls, servers := map[string]sdk.ReadOnlySpan{}, map[string]sdk.ReadOnlySpan{} // by replica
	for _, span := range ended {
		of := servers
		if span.SpanKind() == trace.SpanKindClient {
			of = calls
		}
		of[attributesOf(span)["cascade.replica"]] = span
	}
	for i, replica := range []string{"r0", "r1"} {
		call, server := calls[replica], servers[replica]
		if call == nil || server == nil {
			t.Fatalf("%s: call %v, server %v", replica, call, server)
		}
		if call.Parent().SpanID() != server.SpanContext().SpanID() {
			t.Errorf("%s: the call's span is below %s, want %s", replica, call.Parent().SpanID(), server.SpanContext().SpanID())
		}
		if seen := f.engines[i].last.Load().Header.Get("Traceparent"); !strings.Contains(seen, call.SpanContext().SpanID().String()) {
			t.Errorf("%s: its engine sees the parent %s", replica, seen)
		}
		a := attributesOf(call)
		for key, want := range map[string]string{"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "vllm", "gen_ai.request.max_tokens": "70",
			"cascade.leg": s.id + "#" + a["cascade.epoch"], "gen_ai.request.model": s.request.Model} {
			if a[key] != want {
				t.Errorf("%s: %s is %q, want %q", replica, key, a[key], want)
			}
		}
		if events := call.Events(); len(events) != 1 || events[0].Name != firstTokenEvent || !events[0].Time.After(call.StartTime()) && i == 0 {
			t.Errorf("%s: events %v", replica, events)
		}
	}
	lost, second, whole := attributesOf(calls["r0"]), attributesOf(calls["r1"]), attributesOf(servers["r0"])
	if lost["cascade.continued_elsewhere"] != "true" || lost["gen_ai.response.finish_reasons"] != "" {
		t.Errorf("the lost call: %v", lost)
	}
	if second["cascade.continued_elsewhere"] != "false" || second["gen_ai.response.finish_reasons"] != `["length"]` {
		t.Errorf("the second call: %v", second)
	}
	if whole["gen_ai.usage.output_tokens"] != "70" || whole["gen_ai.usage.input_tokens"] == "" || whole["cascade.splices"] != "1" {
		t.Errorf("the request: %v", whole)
	}
}

// attributesOf returns a span's attributes as text.
func attributesOf(span sdk.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, a := range span.Attributes() {
		all[string(a.Key)] = a.Value.Emit()
	}
	return all
}
