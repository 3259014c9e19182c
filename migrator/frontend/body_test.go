package frontend

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// lateWriter is a ResponseWriter whose read deadline takes a second to set, so that the
// handler could return meanwhile.
type lateWriter struct {
	*httptest.ResponseRecorder
	returned atomic.Bool // the handler has
	late     atomic.Bool // a deadline was set after that
}

func (w *lateWriter) SetReadDeadline(at time.Time) error {
	if !at.IsZero() && at.Before(time.Unix(2, 0)) {
		time.Sleep(time.Second)
		w.late.Store(w.returned.Load())
	}
	return nil
}

// endedBody is a body whose reads fail when the context ends.
type endedBody struct{ ctx context.Context }

func (b endedBody) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, errors.New("the stream was reset")
}

func (b endedBody) Close() error { return nil }

// TestAttackResetWhileReading checks that a client that resets its stream while its body is
// read cannot make the server use a ResponseWriter whose handler has returned: net/http
// panics then, and takes the process with it.
func TestAttackResetWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, reset := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", endedBody{ctx})
		w := &lateWriter{ResponseRecorder: httptest.NewRecorder()}
		srv := &Server{cfg: Config{MaxBody: 1 << 20, BodyTimeout: time.Minute}}
		time.AfterFunc(time.Second, reset)
		if _, ok := srv.readBody(w, r); ok {
			t.Error("a cut body was read")
		}
		w.returned.Store(true)
		time.Sleep(time.Minute)
		if w.late.Load() {
			t.Error("the read deadline was set after the handler had returned")
		}
	})
}
