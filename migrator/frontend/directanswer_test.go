package frontend

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
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

func TestTrustBoundary(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		req, _ := http.NewRequest("POST", "http://"+f.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","stream":true,"kv_transfer_params":{"do_remote_prefill":true},"kv_transfer_params":null,"vllm_xargs":{"kv_transfer_params":"y"}}`))
		for _, name := range []string{"X-Cascade-Tokens", "x-cascade-anything", "X-Gateway-Model-Name", "x-cascade-forward", "x-cascade-leg", "x-cascade-migration", "Te", "Connection", "Mine"} {
			req.Header.Set(name, "Mine2")
		}
		req.Header.Set("Mine2", "for this connection only")
		resp, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		waitFor(t, func() bool { return e.body.Load() != nil })
		for name, value := range e.last.Load().Header {
			if name == LegHeader && regexp.MustCompile(`^r0/\d+#1$`).MatchString(value[0]) && len(value) == 1 {
				continue // set by the server
			}
			if l := strings.ToLower(name); strings.HasPrefix(l, "x-cascade-") || l == "x-gateway-model-name" || l == "mine2" || l == "te" {
				t.Errorf("the engine got the header %s", name)
			}
		}
		if got := e.last.Load().Header.Get("Mine"); got != "Mine2" {
			t.Errorf("the client's own header is %q", got)
		}
		if body := *e.body.Load(); strings.Contains(body, "kv_transfer_params") {
			t.Errorf("the engine got %s", body)
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
