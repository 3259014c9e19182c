package move_test

import (
	"errors"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// TestRescued checks that the executor counts streams that lost their engine, and reports how long
// they waited.
func TestRescued(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	var stalls []string
	m, err := move.New(move.Config{Self: "a", FrontEnd: func() move.FrontEnd { return &frontEnd{} }, Send: (&replica{}).Send, Paths: transport.NewPaths(transport.PathsConfig{Self: "a"}), Address: func(policies.ReplicaID) string { return "" }, Notify: func(bidask.Event) {},
		Tracer: sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test"), OnStall: func(stall time.Duration, span trace.SpanContext) {
			stalls = append(stalls, stall.String()+" "+span.TraceID().String())
		}})
	testkit.NoError(t, err)
	began := time.Unix(1e9, 0)
	m.RecordRescue(frontend.Rescue{Stream: "a/1", From: "b", To: "c", Length: 90, Start: began, Duration: 2 * time.Second})
	m.RecordRescue(frontend.Rescue{Stream: "a/2", From: "b", Length: 95, Start: began, Duration: 30 * time.Second, Err: errors.New("no replica")})
	if s := m.Stats(); s.Rescued != 1 || s.Lost != 1 || s.Stalls != 1 || s.TotalStall != 2*time.Second || s.LongestStall != 2*time.Second {
		t.Errorf("%+v", s)
	}
	if want := "2s " + spans.Ended()[0].SpanContext().TraceID().String(); len(stalls) != 1 || stalls[0] != want {
		t.Errorf("stalls %q, want %q", stalls, want)
	}
	var got []string
	for _, s := range spans.Ended() {
		got = append(got, s.Name()+" "+s.EndTime().Sub(s.StartTime()).String()+" "+s.Status().Description)
	}
	if len(got) != 2 || got[0] != "migration.rescue 2s " || got[1] != "migration.rescue 30s the stream ends" {
		t.Errorf("%q", got)
	}
}
