package frontend

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf16"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// TestEqualsDirect compares answers through the server with the engine's own,
// byte for byte up to id and created.
func TestEqualsDirect(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
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
							want, wantBody := e.post(path, body)
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
			f.post("/v1/completions", `{"model":"m","prompt":"x"}`)
		}
		for _, feature := range []string{`"n":2`, `"logprobs":3`, `"echo":true`, `"tools":[{}]`, `"prompt_logprobs":1`, `"best_of":2`, `"stream_options":{}`, `"stream":1`} {
			f.post("/v1/completions", `{"model":"m","prompt":"x",`+feature+`}`)
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
		f := newFleet(t, 2, places)
		var last atomic.Pointer[http.Request]
		var got atomic.Pointer[string]
		record := func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			asked := string(text)
			got.Store(&asked)
			last.Store(r)
			http.Error(w, "seen", http.StatusTeapot)
		}
		for _, e := range f.engines {
			e.set(nil, record)
			e.pass(record)
		}
		ids := make(map[string]bool)
		for _, to := range []policies.Target{{}, f.target(1)} {
			f.placers[0].sendTo(to)
			for major, c := range clientsOf(t) {
				for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize"} {
					req := jsonRequest(f.url, path, body, "Authorization", "Bearer k", "Traceparent", "good")
					for _, name := range []string{"X-Cascade-Tokens", "x-cascade-anything", "X-Gateway-Model-Name", "x-cascade-forward", "x-cascade-leg", "x-cascade-migration",
						"X-Request-Id", "X-data-parallel-rank", "X-Vllm-Priority", "X-Forwarded-For", "Cookie", "Mine"} {
						req.Header.Set(name, "evil")
					}
					if major == 1 {
						req.Header.Set("Tracestate", "for this connection only")
						req.Header.Set("Connection", "Tracestate")
					}
					if resp, _ := do(t, c, req); resp.StatusCode != http.StatusTeapot {
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
			resp, got := f.post("/v1/completions", body)
			if resp.StatusCode/100 != 4 || !strings.Contains(got, want) {
				t.Errorf("%.40s: %d %s, want %s", body, resp.StatusCode, got, want)
			}
		}
		// A body of unknown length is cut at the limit.
		req := jsonRequest(f.url, "/v1/completions", strings.Repeat(" ", 1000))
		req.ContentLength = -1
		if resp, _ := do(t, f.client, req); resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("a body of unknown length: %s", resp.Status)
		}
		if e.calls.Load() != 0 {
			t.Error("a bad request reached the engine")
		}
	})
}

// TestPassthroughParsesLikeEngine sends bodies that Python's JSON parser accepts
// and Go's does not: none may name another engine's memory to the engine.
func TestPassthroughParsesLikeEngine(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		const kv = `"kv_transfer_params":{"remote_host":"x"}`
		wide := "\xff\xfe"
		for _, u := range utf16.Encode([]rune(`{` + kv + `}`)) {
			wide += string([]byte{byte(u), byte(u >> 8)})
		}
		deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
		for _, path := range []string{"/v1/responses", "/v1/messages", "/tokenize", "/v1/completions/render", "/v1/audio/speech"} {
			for _, body := range []string{
				`{"x":NaN,` + kv + `}`, `{"x":-Infinity,` + kv + `}`, "\ufeff{" + kv + "}", wide, wide[2:], `{"x":` + deep + `,` + kv + `}`, `[{` + kv + `}]`, " ",
			} {
				for _, kind := range []string{"application/json", "multipart/form-data; boundary=x"} {
					if resp, _ := f.post(path, body, "Content-Type", kind); resp.StatusCode != http.StatusBadRequest {
						t.Errorf("%s as %s: %.40q is answered %d", path, kind, body, resp.StatusCode)
					}
				}
			}
		}
		// Requests without a body.
		for _, test := range [][2]string{{"/v1/responses/x/cancel", ""}, {"/tokenize", `{"prompt":"x"}`}} {
			if resp, got := f.post(test[0], test[1]); resp.StatusCode != 200 || got != "passed POST "+test[0] {
				t.Errorf("%s: %d %s", test[0], resp.StatusCode, got)
			}
		}
	})
}

// TestAddressesStayInside checks that an engine's answer names neither another place to its client nor a
// retry to the proxy, whether the front end parses it or not.
func TestAddressesStayInside(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		redirect := func(w http.ResponseWriter, _ *http.Request) {
			for _, name := range []string{"Location", "Content-Location", "Refresh", "Alt-Svc", length.RefusedHeader, "Endpoint-Load-Metrics"} {
				w.Header().Set(name, "http://127.0.0.1:8000/")
			}
			w.WriteHeader(http.StatusTemporaryRedirect)
		}
		e.set(nil, redirect)
		e.pass(redirect)
		for _, path := range []string{"/v1/completions", "/v1/embeddings", "/tokenize"} {
			resp := testkit.Must(f.client.Transport.RoundTrip(jsonRequest(f.url, path, `{"prompt":"x"}`)))
			resp.Body.Close()
			for name, values := range resp.Header {
				if strings.Contains(strings.Join(values, " "), "127.0.0.1") {
					t.Errorf("%s: %s: %q", path, name, values)
				}
			}
		}
	})
}

// TestPassThroughAnswersSoon checks requests that an engine answers without computing tokens: it has as
// long as a stream may pause, not as long as a prompt may take.
func TestPassThroughAnswersSoon(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		stuck := make(chan struct{})
		e.pass(func(http.ResponseWriter, *http.Request) { <-stuck })
		defer close(stuck)
		defer within(t, 2*f.cfg.HangTimeout)()
		for _, c := range []chan string{f.call("GET", "/v1/models", ""), f.call("POST", "/tokenize", `{"prompt":"x"}`)} {
			if got := <-c; !strings.HasPrefix(got, "502  ") {
				t.Error(got)
			}
		}
	})
	// An answer that has begun takes its time, and its client gets each piece at once.
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.pass(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "soon")
			w.(http.Flusher).Flush()
			time.Sleep(4 * f.cfg.HangTimeout)
			io.WriteString(w, " late")
		})
		begun := time.Now()
		resp := testkit.Must(f.client.Get("http://" + f.url + "/v1/responses/x"))
		defer resp.Body.Close()
		first := make([]byte, len("soon"))
		testkit.Must(io.ReadFull(resp.Body, first))
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the first piece came after %v", took)
		}
		if rest, err := io.ReadAll(resp.Body); string(first)+string(rest) != "soon late" || err != nil {
			t.Errorf("%s%s, %v", first, rest, err)
		}
	})
}

// TestTextCallsAreBounded sends more calls to tokenize than an engine's HTTP server can do at once: it gets a few,
// half of them from one tenant, those beyond wait for a moment and are refused, and all slots are free afterwards.
func TestTextCallsAreBounded(t *testing.T) {
	for _, path := range []string{"/tokenize", "/v1/completions/render", "/v1/chat/completions/render", "/v1/messages/count_tokens"} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine(t)
			proceed := make(chan struct{})
			end := sync.OnceFunc(func() { close(proceed) })
			var running, most, refused, served atomic.Int64
			e.pass(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path != path {
					return
				}
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				<-proceed
				running.Add(-1)
			})
			defer end()
			srv := startServer(t, e.URL, func(c *Config) { c.Overload.TenantHeader, c.HangTimeout = "X-Tenant", time.Minute })
			send := func(tenant string) {
				resp, _, err := tryDo(srv.client, jsonRequest(srv.url, path, `{"prompt":"x"}`, "X-Tenant", tenant))
				switch {
				case err != nil:
					t.Error(err)
				case resp.StatusCode == http.StatusOK:
					served.Add(1)
				case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "":
					refused.Add(1)
				default:
					t.Errorf("%s: status %d", path, resp.StatusCode)
				}
			}
			for range 100 {
				go send("loud")
			}
			synctest.Wait()
			if running.Load() != maxTextCalls/2 || refused.Load() != 100-maxTenantCalls {
				t.Errorf("%s: a tenant has %d calls at the engine, and %d are refused at once; want %d, %d", path, running.Load(), refused.Load(), maxTextCalls/2, 100-maxTenantCalls)
			}
			for _, tenant := range []string{"a", "b", "c"} {
				for range maxTextCalls / 2 {
					go send(tenant)
				}
			}
			synctest.Wait()
			if running.Load() != maxTextCalls {
				t.Errorf("%s: %d calls are at the engine, want %d", path, running.Load(), maxTextCalls)
			}
			waitFor(t, func() bool {
				return running.Load() == maxTextCalls && served.Load() == 0 && refused.Load() == 100+3*maxTextCalls/2-maxTextCalls
			})
			end()
			waitFor(t, func() bool { return served.Load() == maxTextCalls && most.Load() == maxTextCalls })
			for range maxTextCalls {
				send("loud") // every slot is free
			}
			if served.Load() != 2*maxTextCalls {
				t.Errorf("%s: %d calls are served in the end", path, served.Load())
			}
			waitFor(t, func() bool {
				srv.textCalls.mu.Lock()
				defer srv.textCalls.mu.Unlock()
				return len(srv.textCalls.tenants)+len(srv.textCalls.slots) == 0
			})
		})
	}
}

// TestTextCallsEnd checks that neither clients that do not read their answers nor calls that the engine drops keep
// others out.
func TestTextCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		answer := func(tokenize http.HandlerFunc) {
			e.pass(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/tokenize" {
					tokenize(w, r)
				}
			})
		}
		srv := startServer(t, e.URL, nil)
		read := make(chan struct{})
		answer(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			<-read
		})
		var slow []chan string
		for range maxTextCalls {
			slow = append(slow, srv.call("POST", "/tokenize", `{}`))
		}
		synctest.Wait()
		answer(breaks)
		for range maxTextCalls {
			if got := <-srv.call("POST", "/tokenize", `{}`); !strings.HasPrefix(got, "502") {
				t.Errorf("dropped by the engine: %s", got)
			}
		}
		answer(func(http.ResponseWriter, *http.Request) {})
		waitFor(t, srv.ready.Load)
		if got := <-srv.call("POST", "/tokenize", `{}`); !strings.HasPrefix(got, "200") {
			t.Errorf("afterwards: %s", got)
		}
		close(read)
		for _, got := range slow {
			<-got
		}
	})
}

// TestLargeTextCallsAreRefused checks that no call makes the engine tokenize more than some megabytes.
func TestLargeTextCallsAreRefused(t *testing.T) {
	runServer(t, func(c *Config) { c.MaxBody = 2 * maxText }, func(t *testing.T, _ *engine, srv *testServer) {
		for size, want := range map[int]string{maxText / 2: "200", maxText: "413"} {
			if got := <-srv.call("POST", "/tokenize", `{"prompt":"`+strings.Repeat("x", size)+`"}`); !strings.HasPrefix(got, want) {
				t.Errorf("%d bytes: %.200s, want %s", size, got, want)
			}
		}
		if got := <-srv.call("POST", "/v1/embeddings", `{"input":"`+strings.Repeat("x", maxText)+`"}`); !strings.HasPrefix(got, "200") {
			t.Errorf("an input to embed: %.200s", got)
		}
	})
}
