package kvport

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	spancodes "go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// What a peer asks for is validated, and its answers have the codes that the caller maps.
func TestServeRefuses(t *testing.T) {
	w := start(t, nil)
	w.a.compute(prefix(24, 1))
	for name, x := range map[string]struct {
		change func(q *api.FetchPrefixRequest)
		want   codes.Code
	}{
		"another layout": {func(q *api.FetchPrefixRequest) { q.Fingerprint++ }, codes.FailedPrecondition},
		"half a block":   {func(q *api.FetchPrefixRequest) { q.First = 2 }, codes.InvalidArgument},
		"beyond the ids": {func(q *api.FetchPrefixRequest) { q.First = 1 << 63 }, codes.InvalidArgument},
		"all is there":   {func(q *api.FetchPrefixRequest) { q.First = 24 }, codes.NotFound},
		"other ids":      {func(q *api.FetchPrefixRequest) { q.Ids[0]++ }, codes.NotFound},
		"another model":  {func(q *api.FetchPrefixRequest) { q.Model = "lora" }, codes.NotFound},
		"another tenant": {func(q *api.FetchPrefixRequest) { q.CacheSalt = "x" }, codes.NotFound},
	} {
		q := &api.FetchPrefixRequest{Model: "m", Ids: prefix(24, 1).IDs, Fingerprint: 77}
		x.change(q)
		if _, err := w.serve(t.Context(), q); status.Code(err) != x.want {
			t.Errorf("%s: %v", name, err)
		}
		w.waitUnpinned(t)
	}
}

// Each side of a pull is in the trace of its request: the holder's span is below the puller's, and says
// what it offered, or why it did not.
func TestServeSpans(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, held := range map[string]int{"offered": 20, "refused": 0} {
		t.Run(name, func(t *testing.T) {
			spans := tracetest.NewSpanRecorder()
			tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test")
			w := start(t, func(_ *world, a, _ *CopierConfig) { a.Tracer = tracer })
			w.a.compute(prefix(held, 1))
			w.b.compute(prefix(8, 1))
			_, err := w.puller.Pull(frontend.ContextWithTrace(t.Context(), parent), "a", prefix(24, 1))
			if (err == nil) != (held > 0) {
				t.Fatal(err)
			}
			span := testkit.WaitForValue(t, "the holder's span", spans.Ended, func(s []sdk.ReadOnlySpan) bool { return len(s) > 0 })[0]
			attrs := map[string]string{}
			for _, a := range span.Attributes() {
				attrs[string(a.Key)] = a.Value.Emit()
			}
			want := map[string]string{"cascade.from": "a", "cascade.to": "b"}
			if held > 0 {
				want["cascade.tokens"] = "12"
			}
			if p := span.Parent(); span.Name() != "prefix.serve" || p.TraceID().String() != parent[3:35] || p.SpanID().String() != parent[36:52] || !maps.Equal(attrs, want) {
				t.Errorf("%s below %s: %v, want %v", span.Name(), p.SpanID(), attrs, want)
			}
			if failed := span.Status().Code == spancodes.Error; failed != (err != nil) {
				t.Errorf("%v, and the pull's error is %v", span.Status(), err)
			}
		})
	}
}

// A holder keeps a prefix for serveTimeout, however long its peer reads.
func TestServeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.a.compute(prefix(24, 1))
		begun, answered := time.Now(), false
		err := w.holder.Serve(context.Background(), "b", &api.FetchPrefixRequest{Model: "m", Ids: prefix(24, 1).IDs, Fingerprint: 77}, func(*api.FetchPrefixAnswer) error {
			answered = true
			return nil
		})
		if took := time.Since(begun); err != nil || !answered || took != serveTimeout || w.a.pinned() > 0 {
			t.Errorf("%v after %v, answered: %v, %d references and reservations are left", err, took, answered, w.a.pinned())
		}
	})
}

// A ticket that was not used is worth nothing once the call has ended: the blocks have others' content then.
func TestTicketEndsWithItsCall(t *testing.T) {
	w := start(t, nil)
	w.a.compute(prefix(24, 1))
	unused := make(chan []byte, 1)
	w.ask = func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
		a, err := serve(ctx, q)
		if err != nil {
			return nil, err
		}
		unused <- a.Offers[0].Ticket
		return nil, errors.New("the answer is lost")
	}
	if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); err == nil {
		t.Error("no error")
	}
	w.waitFree(t)
	w.ask = func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
		a, err := serve(ctx, q)
		if err == nil {
			a.Offers[0].Ticket = <-unused
		}
		return a, err
	}
	if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("with the ticket of the call that has ended: %v", err)
	}
}

// A holder of which no transport runs says that it cannot serve, and counts that.
func TestNoTransport(t *testing.T) {
	w := start(t, func(w *world, a, _ *CopierConfig) {
		a.Paths = transport.NewPaths(transport.PathsConfig{Self: "a", Pool: w.a})
	})
	w.a.compute(prefix(24, 1))
	if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	w.waitFree(t)
	if s := w.holder.Served(); s.Prefixes != 0 || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
}
