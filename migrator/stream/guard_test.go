package stream

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// h2Client returns a client that speaks HTTP/2 without TLS.
func h2Client(t testing.TB) *http.Client {
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: h2}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestQuietStream checks that an engine may be quiet for longer than a client
// may take to read, on both versions of HTTP.
func TestQuietStream(t *testing.T) {
	t.Parallel()
	const timeout = 200 * time.Millisecond
	e := newEngine(t)
	e.set(func(n int, r *http.Request) {
		if n == 2 || n == 4 {
			time.Sleep(5 * timeout) // what is tested is that nothing happens meanwhile
		}
	}, nil)
	f := start(t, e.URL, func(c *Config) { c.WriteTimeout = timeout })
	for name, c := range map[string]*http.Client{"HTTP/1.1": f.client, "HTTP/2": h2Client(t)} {
		resp, err := c.Post("http://"+f.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.HasSuffix(string(b), "[DONE]\n\n") {
			t.Errorf("%s: %v after %q", name, err, b)
		}
	}
}

// TestSlowReaders checks that a client that takes nothing is given up, whatever
// kind of answer it gets and whatever it speaks.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
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
			io.WriteString(w, large)
		}
		e.set(nil, say)
		e.rest.Store(&say)
		f := start(t, e.URL, func(c *Config) { c.WriteTimeout = 40 * time.Millisecond })
		for name, c := range map[string]*http.Client{"HTTP/1.1": f.client, "HTTP/2": h2Client(t)} {
			resp, err := c.Post("http://"+f.url+test.path, "application/json", strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, f.vacant)
			n, err := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if err == nil {
				t.Errorf("%s, %s: the answer is whole after %d bytes", test.name, name, n)
			}
		}
	}
}

// stuckWriter takes nothing until its deadline.
type stuckWriter struct {
	recorder
	cut  chan struct{}
	held *Stream
	t    *testing.T
}

func (w *stuckWriter) Write([]byte) (int, error) {
	w.held.Request() // waits when the stream is locked, and the test ends in a deadlock
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

func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{recorder: recorder{header: http.Header{}}, cut: make(chan struct{}), held: &Stream{}, t: t}
		g := newGuard(w, time.Minute)
		time.Sleep(time.Hour) // quiet
		begun := time.Now()
		if _, err := g.Write([]byte("x")); err == nil {
			t.Error("a write that nobody takes succeeds")
		}
		if took := time.Since(begun); took < time.Minute || took > 90*time.Second {
			t.Errorf("the client is given up after %v", took)
		}
		g.end(&http.Request{ProtoMajor: 2})
	})
}

// TestAssemblyWritesUnlocked checks that a client that reads one whole answer
// slowly holds up nobody who asks about its stream.
func TestAssemblyWritesUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{recorder: recorder{header: http.Header{}}, cut: make(chan struct{}), t: t}
		g := newGuard(w, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		leg := newMemLeg(nil, io.EOF, "data: {\"error\":{}}\n\n", "data: [DONE]\n\n")
		w.held = newTestStream(ctx, &assembly{w: g, shape: &shape{}, header: http.Header{}}, cancel)
		w.held.leg = leg
		first, _ := leg.Next()
		if err := w.held.pump(leg, first); err != nil {
			t.Error(err)
		}
		<-w.cut
		g.end(&http.Request{ProtoMajor: 2})
	})
}
