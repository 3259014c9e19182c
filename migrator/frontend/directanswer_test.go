package frontend

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestEqualsDirect compares answers through the server with the engine's own,
// byte for byte up to id and created.
func TestEqualsDirect(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		direct := strings.TrimPrefix(e.URL, "http://")

		clients := map[string]*http.Client{"HTTP/1.1": f.client, "HTTP/2.0": {Transport: memory.transport(t, 2)}}

		prompts := map[string]string{
			"/v1/completions":      `"prompt":"Once \"upon\" a time"`,
			"/v1/chat/completions": `"messages":[{"role":"user","content":"Häh?"}]`,
		}
		for path, prompt := range prompts {
			for _, stream := range []string{"", `,"stream":false`, `,"stream":true`} {
				for _, ids := range []string{"", `,"return_token_ids":true`, `,"return_token_ids":false`} {
					for _, usage := range []string{"", `,"stream_options":{"include_usage":true}`, `,"stream_options":{"include_usage":false}`} {
						if usage != "" && stream != `,"stream":true` {
							continue
						}
						for _, more := range []string{"", `,"max_tokens":1`, `,"max_tokens":40,"unknown":{"x":[1.50]}`, `,"max_tokens":0`, `,"n":1`, `,"logprobs":null`} {
							body := `{"model":"m",` + prompt + stream + ids + usage + more + `}`
							want, wantBody := post(t, f.client, direct, path, body)
							for proto, c := range clients {
								got, gotBody := post(t, c, f.url, path, body)
								if got.StatusCode != want.StatusCode || withoutIDs(gotBody) != withoutIDs(wantBody) {
									t.Fatalf("%s %s %s\n got %d %s\nwant %d %s", proto, path, body, got.StatusCode, gotBody, want.StatusCode, wantBody)
								}
								if a, b := got.Header.Get("Content-Type"), want.Header.Get("Content-Type"); a != b {
									t.Errorf("%s: Content-Type %q, want %q", body, a, b)
								}
								if got.Proto != proto {
									t.Errorf("answered over %s, want %s", got.Proto, proto)
								}
							}
						}
					}
				}
			}
		}
		// Unstreamed answers are relayed until their template is known, then
		// assembled from streams, which the engine's last request shows.
		if body := *e.body.Load(); !strings.Contains(body, `"stream":true`) {
			t.Errorf("the engine was last asked %s", body)
		}
		if load := f.Status().Load; load.Running+load.Waiting != 0 {
			t.Errorf("nothing runs, but the load is %+v", load)
		}
	})
}

func TestFeaturesThatCannotBeAssembled(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		for range 2 { // the second time the template is known
			post(t, f.client, f.url, "/v1/completions", `{"model":"m","prompt":"x"}`)
		}
		for _, feature := range []string{`"n":2`, `"logprobs":3`, `"echo":true`, `"tools":[{}]`, `"prompt_logprobs":1`, `"best_of":2`, `"stream_options":{}`, `"stream":1`} {
			post(t, f.client, f.url, "/v1/completions", `{"model":"m","prompt":"x",`+feature+`}`)
			if got := *e.body.Load(); got != `{"model":"m","prompt":"x",`+feature+`}` {
				t.Errorf("%s: the engine was asked %s", feature, got)
			}
		}
	})
}

// TestAttackEngineFacingNames checks what of a client's request an engine gets to see: no
// name of another engine's memory, of a request or of an engine's part, on any way to it.
func TestAttackEngineFacingNames(t *testing.T) {
	const body = `{"model":"m","prompt":"x","stream":true,"kv_transfer_params":{"do_remote_prefill":true},"kv_transfer_params":null,"vllm_xargs":{"kv_transfer_params":"evil"},"request_id":"evil","request_\u0069d":"evil"}`
	synctest.Test(t, func(t *testing.T) {
		fa, fb, a, b, pa, _ := newForwardingPair(t)
		var last atomic.Pointer[http.Request]
		var got atomic.Pointer[string]
		record := func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			asked := string(text)
			got.Store(&asked)
			last.Store(r)
			http.Error(w, "seen", http.StatusTeapot)
		}
		for _, e := range []*engine{a, b} {
			e.set(nil, record)
			e.passthrough.Store(&record)
		}
		ids := make(map[string]bool)
		for _, peer := range []*string{nil, &fb.peer} {
			pa.peer.Store(peer)
			for major, c := range clientsOf(t) {
				for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize"} {
					req := jsonRequest(fa.url, path, body)
					for _, name := range []string{"X-Cascade-Tokens", "x-cascade-anything", "X-Gateway-Model-Name", "x-cascade-forward", "x-cascade-leg", "x-cascade-migration",
						"X-Request-Id", "X-data-parallel-rank", "X-Vllm-Priority", "X-Forwarded-For", "Cookie", "Mine"} {
						req.Header.Set(name, "evil")
					}
					req.Header.Add("Authorization", "Bearer k")
					req.Header.Set("Traceparent", "good")
					if major == 1 {
						req.Header.Set("Tracestate", "for this connection only")
						req.Header.Set("Connection", "Tracestate")
					}
					resp, err := c.Do(req)
					testkit.NoError(t, err)
					resp.Body.Close()
					if resp.StatusCode != http.StatusTeapot {
						t.Fatalf("%s: %s", path, resp.Status)
					}
					h := last.Load().Header
					id := h.Get("X-Request-Id")
					if len(id) != 32 || ids[id] || len(h["X-Request-Id"]) != 1 || h.Get("Authorization") != "Bearer k" || h.Get("Traceparent") != "good" {
						t.Errorf("HTTP/%d %s: the engine got %v", major, path, h)
					}
					ids[id] = true
					for name, values := range h {
						known := slices.Contains(forEngines[:], name) || slices.Contains([]string{"X-Request-Id", LegHeader, "Content-Length"}, name)
						if !known || strings.Contains(strings.Join(values, ","), "evil") || name == "Tracestate" {
							t.Errorf("HTTP/%d %s: the engine got %s: %q", major, path, name, values)
						}
					}
					if text := *got.Load(); strings.Contains(text, "evil") || strings.Contains(text, "transfer_params") {
						t.Errorf("HTTP/%d %s: the engine got %s", major, path, text)
					}
				}
			}
		}
	})
}

func TestBadRequests(t *testing.T) {
	runServer(t, func(c *Config) { c.MaxBody = 100 }, func(t *testing.T, e *engine, f *testServer) {
		for body, want := range map[string]string{
			`{"model":`: `{"error":{"message":"the request body is not valid JSON at byte 9: unexpected end of JSON input","type":"BadRequestError","param":null,"code":400}}`,
			`[]`:        `the request body is not a JSON object`,
			fmt.Sprintf(`{"prompt":%q}`, strings.Repeat("x", 100)): `the request body has more than 100 bytes`,
		} {
			resp, got := post(t, f.client, f.url, "/v1/completions", body)
			if resp.StatusCode/100 != 4 || !strings.Contains(got, want) {
				t.Errorf("%.40s: %d %s, want %s", body, resp.StatusCode, got, want)
			}
		}
		// A body of unknown length is cut at the limit.
		req, _ := http.NewRequest("POST", "http://"+f.url+"/v1/completions", struct{ *strings.Reader }{strings.NewReader(strings.Repeat(" ", 1000))})
		req.ContentLength = -1
		if resp, err := f.client.Do(req); err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Error(err, resp)
		} else {
			resp.Body.Close()
		}
		if e.calls.Load() != 0 {
			t.Error("a bad request reached the engine")
		}
	})
}
