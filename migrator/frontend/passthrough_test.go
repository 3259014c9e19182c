package frontend

import (
	"net/http"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

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
					resp := testkit.Must(f.client.Post("http://"+f.url+path, kind, strings.NewReader(body)))
					resp.Body.Close()
					if resp.StatusCode != http.StatusBadRequest {
						t.Errorf("%s as %s: %.40q is answered %d", path, kind, body, resp.StatusCode)
					}
				}
			}
		}
		// Requests without a body.
		for _, test := range [][2]string{{"/v1/responses/x/cancel", ""}, {"/tokenize", `{"prompt":"x"}`}} {
			if resp, got := post(t, f.client, f.url, test[0], test[1]); resp.StatusCode != 200 || got != "passed POST "+test[0] {
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
		e.passthrough.Store(&redirect)
		for _, path := range []string{"/v1/completions", "/v1/embeddings", "/tokenize"} {
			resp, err := f.client.Transport.RoundTrip(testkit.Must(http.NewRequest("POST", "http://"+f.url+path, strings.NewReader(`{"prompt":"x"}`))))
			testkit.NoError(t, err)
			resp.Body.Close()
			for name, values := range resp.Header {
				if strings.Contains(strings.Join(values, " "), "127.0.0.1") {
					t.Errorf("%s: %s: %q", path, name, values)
				}
			}
		}
	})
}
