package frontend

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestQuietStream checks that an answer may be quiet for longer than
// WriteTimeout, on both versions of HTTP.
func TestQuietStream(t *testing.T) {
	const timeout, pieces = 10 * time.Second, 3
	for _, major := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			f := &Server{cfg: Config{WriteTimeout: timeout}}
			d, lis := newListeners(f), listen()
			s := d.serve(t.Context(), lis, &d.fromClients, f.withAnswer(timeout, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for range pieces {
					io.WriteString(w, "x")
					http.NewResponseController(w).Flush()
					time.Sleep(5 * timeout)
				}
			})))
			transport := memory.transport(t, major)
			resp := testkit.Must((&http.Client{Transport: transport}).Get("http://" + lis.Addr().String()))
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || len(b) != pieces || resp.ProtoMajor != major {
				t.Errorf("HTTP/%d: %v after %q", resp.ProtoMajor, err, b)
			}
			transport.CloseIdleConnections()
			synctest.Wait()
			s.Close()
			d.wg.Wait()
		})
	}
}

// TestSlowReaders checks that the answer to a client that reads nothing is cut,
// for every kind of answer and protocol.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer within(t, 5*time.Second)()
		large := strings.Repeat("a", 16<<20)
		event := `data: {"id":"x","choices":[{"index":0,"text":"` + large[:1<<16] + `","token_ids":[1]}]}` + "\n\n"
		for _, test := range []struct{ name, path, body string }{
			{"events", "/v1/completions", `{"prompt":"x","stream":true}`},
			{"relayed events", "/v1/completions", `{"prompt":"x","n":2}`},
			{"relayed", "/v1/completions", `{"prompt":"x","n":3}`},
			{"passed", "/v1/embeddings", `{}`},
		} {
			e := newEngine(t)
			say := func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(test.name, "events") {
					w.Header().Set("Content-Type", "text/event-stream")
					for r.Context().Err() == nil {
						if _, err := io.WriteString(w, event); err != nil {
							return
						}
					}
					return
				}
				// httputil.ReverseProxy flushes for the first time while it waits for this.
				http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
				io.WriteString(w, large)
			}
			e.set(nil, say)
			e.passthrough.Store(&say)
			f := startServer(t, e.URL, func(c *Config) { c.WriteTimeout = 40 * time.Millisecond })
			for name, c := range map[string]*http.Client{"HTTP/1.1": f.client, "HTTP/2": {Transport: memory.transport(t, 2)}} {
				resp := testkit.Must(c.Post("http://"+f.url+test.path, "application/json", strings.NewReader(test.body)))
				waitFor(t, f.inFlight.isIdle)
				n, err := io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err == nil {
					t.Errorf("%s, %s: the answer is whole after %d bytes", test.name, name, n)
				}
			}
		}
	})
}

// stuckWriter blocks until its deadline.
type stuckWriter struct {
	recorder
	cut    chan struct{}
	stream *Stream
	t      *testing.T
}

func (w *stuckWriter) Write([]byte) (int, error) {
	w.stream.Request() // deadlocks if the stream is locked
	<-w.cut
	return 0, context.DeadlineExceeded
}
func (w *stuckWriter) FlushError() error { return nil }
func (w *stuckWriter) SetWriteDeadline(at time.Time) error {
	if time.Until(at) > 0 {
		w.t.Error("a deadline that is still to come resets HTTP/2 streams that are quiet")
	}
	close(w.cut)
	return nil
}

func TestWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{recorder: recorder{header: http.Header{}}, cut: make(chan struct{}), stream: newTestStream(t.Context(), nil, func() {}), t: t}
		g := newDeadlineWriter(w, time.Minute)
		time.Sleep(time.Hour) // quiet
		begun := time.Now()
		if _, err := g.Write([]byte("x")); err == nil {
			t.Error("a write succeeds that is never read")
		}
		if took := time.Since(begun); took < time.Minute || took > 90*time.Second {
			t.Errorf("the client is given up after %v", took)
		}
		g.end(&http.Request{ProtoMajor: 2})
	})
}

// TestAnswerWriterDoesNotLockStream checks that a client that reads one whole
// answer slowly does not block queries about its stream.
func TestAnswerWriterDoesNotLockStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{recorder: recorder{header: http.Header{}}, cut: make(chan struct{}), t: t}
		g := newDeadlineWriter(w, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		leg := readLeg(io.NopCloser(strings.NewReader("data: {\"error\":{}}\n\ndata: [DONE]\n\n")), &call{cancel: cancel}, nil, time.Hour, 0)
		w.stream = newTestStream(ctx, &answerWriter{w: g, template: &answerTemplate{}, header: http.Header{}}, cancel)
		first, _ := leg.Next()
		if err := w.stream.pump(opened(leg, first)); err != nil {
			t.Error(err)
		}
		<-w.cut
		g.end(&http.Request{ProtoMajor: 2})
	})
}
