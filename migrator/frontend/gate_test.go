package frontend

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestRoutes checks which methods and paths are served, and that no other request reaches
// the engine: its operator's paths, and paths that it would resolve to one of them.
func TestRoutes(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		var passed atomic.Int64
		count := func(http.ResponseWriter, *http.Request) { passed.Add(1) }
		e.passthrough.Store(&count)
		clients := clientsOf(t)
		for _, test := range []struct {
			requests string // "METHOD path", separated by commas
			want     int
		}{
			{"GET /v1/models, GET /v1/models/, GET /v1/models/org%2Fname, GET /v1/models/a..b, GET /v1/models%2f, GET /v1/responses/x, GET /version, GET /ping, POST /ping", 200},
			{"POST /tokenize, POST /v1/responses/x/cancel, POST /v1/messages/count_tokens, POST /v2/rerank", 200},
			{"GET /v1/models/%2e%2e/%2e%2e/pause, GET /v1/models/..%2f..%2fpause, GET /v1/models/%2e%2e/%2e%2e/pause/, GET /v1/models/%2e, GET /v1/models/%2fpause", 404},
			{"GET /pause, POST /pause, POST /v1/kv_connector/rpc, POST /inference/v1/generate, POST /abort_requests, POST /v1/load_lora_adapter", 404},
			{"GET /metrics, GET /metrics/, GET /load, GET /server_info, GET /docs, GET /openapi.json, GET /, POST //tokenize, GET /v1/responses//cancel, GET /v1/models/..;/pause, GET /v1/models/a%3Bb, GET /v1/models/a%5Cb, GET /v1/models/a%253Fb, GET /v1/models/a%00", 404},
			{"PUT /tokenize, post /tokenize, Post /v1/completions, GET /v1/completions, DELETE /v1/models, PATCH /v1/chat/completions, HEAD /v1/models, OPTIONS /tokenize, POST /health", 405},
		} {
			for _, request := range strings.Split(test.requests, ", ") {
				method, path, _ := strings.Cut(request, " ")
				for major, c := range clients {
					before := passed.Load() + e.calls.Load()
					req, err := http.NewRequest(method, "http://"+f.url+path, nil)
					testkit.NoError(t, err)
					resp, err := c.Do(req)
					testkit.NoError(t, err)
					resp.Body.Close()
					if allow := resp.Header.Get("Allow"); (allow != "") != (test.want == 405) || strings.Contains(allow, method) {
						t.Errorf("HTTP/%d %s: %d, allowed are %q", major, request, resp.StatusCode, allow)
					}
					if reached := passed.Load() + e.calls.Load() - before; resp.StatusCode != test.want || (reached == 1) != (test.want == 200) {
						t.Errorf("HTTP/%d %s: %d, want %d; the engine got %d requests", major, request, resp.StatusCode, test.want, reached)
					}
				}
			}
		}
	})
}

// clientsOf returns a client of each version of HTTP.
func clientsOf(t *testing.T) map[int]*http.Client {
	return map[int]*http.Client{1: {Transport: memory.transport(t, 1)}, 2: {Transport: memory.transport(t, 2)}}
}

// TestAttackWithheldInAnyBody checks that no request takes a withheld field to the engine,
// whatever its method, its path and the form of its body.
func TestAttackWithheldInAnyBody(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		var seen atomic.Pointer[string]
		record := func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			text := string(b)
			seen.Store(&text)
		}
		e.passthrough.Store(&record)
		e.set(nil, record)
		clients := clientsOf(t)
		const json = `{"model":"m","prompt":"x","kv_transfer_params":{"remote_host":"evil"},"vllm_xargs":{"kv_transfer_params":"evil"}}`
		form, kind := formOf(t, [][2]string{{"model", "m"}, {"kv_transfer_params", "evil"}, {"vllm_xargs", `{"kv_transfer_params":"evil"}`}, {"ec_transfer_params", "evil"}})
		quoted := strings.NewReplacer(`name="kv_transfer_params"`, `name=kv_transfer_params`).Replace(form)
		split := strings.NewReplacer(`name="kv_transfer_params"`, `name*0="kv_transfer"; name*1="_params"`).Replace(form)
		for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/responses", "/v1/responses/x", "/v1/responses/x/cancel", "/v1/models",
			"/v1/embeddings", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations", "/health", "/ping", "/nowhere"} {
			for _, method := range []string{"POST", "post", "Post", "PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS", "QUERY"} {
				for _, body := range [][2]string{{"application/json", json}, {"text/plain", json}, {kind, json}, {kind, form}, {kind, quoted}, {kind, split}, {"application/x-www-form-urlencoded", "kv_transfer_params=evil"}} {
					for major, c := range clients {
						seen.Store(nil)
						req, err := http.NewRequest(method, "http://"+f.url+path, strings.NewReader(body[1]))
						testkit.NoError(t, err)
						req.Header.Set("Content-Type", body[0])
						resp, err := c.Do(req)
						testkit.NoError(t, err)
						resp.Body.Close()
						if got := seen.Load(); got != nil && (strings.Contains(*got, "evil") || strings.Contains(*got, "transfer_params")) {
							t.Errorf("HTTP/%d %s %s as %s: the engine got %s", major, method, path, body[0], *got)
						}
					}
				}
			}
		}
	})
}

// formOf returns a form with fields, and its Content-Type.
func formOf(t *testing.T, fields [][2]string) (form, contentType string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, field := range fields {
		testkit.NoError(t, w.WriteField(field[0], field[1]))
	}
	testkit.NoError(t, w.Close())
	return b.String(), w.FormDataContentType()
}

// TestAttackUnfinishedBody checks that every early answer reaches a client whose body
// stalls, at once, and that such a body neither holds a drain open nor costs the other
// requests of an HTTP/2 connection anything.
func TestAttackUnfinishedBody(t *testing.T) {
	const limit = 1 << 10
	for _, major := range []int{1, 2} {
		for name, test := range map[string]struct {
			method, path, sent string
			draining           bool
			want               int
		}{
			"path":      {"POST", "/nowhere", "{", false, 404},
			"method":    {"PUT", "/tokenize", "{", false, 405},
			"GET":       {"GET", "/v1/models", "{", false, 400},
			"too large": {"POST", "/v1/completions", strings.Repeat(" ", limit+1), false, 413},
			"too slow":  {"POST", "/v1/completions", "{", false, 408},
			"refused":   {"POST", "/v1/completions", "{", true, 503},
			"passed":    {"POST", "/tokenize", "{", true, 503},
		} {
			runInBubble(t, fmt.Sprintf("%s HTTP/%d", name, major), func(t *testing.T) {
				e := newEngine(t)
				f := startServer(t, e.URL, func(c *Config) { c.MaxBody, c.BodyTimeout = limit, 3*time.Second })
				c := &http.Client{Transport: memory.transport(t, major)}
				if test.draining {
					f.ready.Store(false)
				}
				begun := time.Now()
				resp, err := c.Do(unfinished(t, test.method, "http://"+f.url+test.path, test.sent))
				testkit.NoError(t, err)
				resp.Body.Close()
				if took := time.Since(begun); resp.StatusCode != test.want || (took > time.Second) != (test.want == 408) {
					t.Errorf("answered %s after %v, want %d", resp.Status, took, test.want)
				}
				if major == 2 {
					resp, err := c.Get("http://" + f.url + "/health")
					testkit.NoError(t, err)
					resp.Body.Close()
					if resp.Close {
						t.Error("the connection is closed for its other requests")
					}
				}
				begun = time.Now()
				f.Drain()
				f.stop = func() {}
				testkit.NoError(t, <-f.done)
				f.done <- nil
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("the drain took %v", took)
				}
			})
		}
	}
}

// TestAttackBodyAsRequests checks that what follows an early answer on an HTTP/1.1
// connection is not taken for another request.
func TestAttackBodyAsRequests(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		const inner = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
		for _, first := range []string{"POST /nowhere", "GET /v1/models", "PUT /tokenize"} {
			for _, framing := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n", len(inner)), "Content-Length: 100000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"} {
				conn, err := memory.dial(t.Context(), "tcp", f.url)
				testkit.NoError(t, err)
				testkit.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
				go io.WriteString(conn, first+" HTTP/1.1\r\nHost: x\r\n"+framing+inner)
				r := bufio.NewReader(conn)
				resp, err := http.ReadResponse(r, nil)
				testkit.NoError(t, err)
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || !resp.Close {
					t.Errorf("%s, %q: %s %v, %v", first, framing, resp.Status, resp.Header, err)
				}
				if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
					t.Errorf("%s, %q: after the answer came %q, %v", first, framing, rest, err)
				}
				conn.Close()
			}
		}
	})
}
