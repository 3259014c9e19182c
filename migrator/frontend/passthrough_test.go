package frontend

import (
	"net/http"
	"strings"
	"testing"
	"unicode/utf16"
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
					resp, err := f.client.Post("http://"+f.url+path, kind, strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
					if resp.StatusCode != http.StatusBadRequest {
						t.Errorf("%s as %s: %.40q is answered %d", path, kind, body, resp.StatusCode)
					}
				}
			}
		}
		// Requests without a body, and forms.
		for _, test := range [][2]string{{"/v1/responses/x/cancel", ""}, {"/tokenize", `{"prompt":"x"}`}, {"/v1/audio/transcriptions", "--x\r\n\r\n--x--\r\n"}} {
			if resp, got := post(t, f.client, f.url, test[0], test[1]); resp.StatusCode != 200 || got != "passed POST "+test[0] {
				t.Errorf("%s: %d %s", test[0], resp.StatusCode, got)
			}
		}
	})
}

// TestPassthroughPaths sends paths that are closed to clients, and paths that an engine
// would resolve to one of them.
func TestPassthroughPaths(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		for path, want := range map[string]int{
			"/v1/models":                      200,
			"/v1/models/":                     200,
			"/v1/models/org%2Fname":           200,
			"/v1/models/a..b":                 200,
			"/v1/models/%2e%2e/%2e%2e/pause":  404,
			"/v1/models/..%2f..%2fpause":      404,
			"/v1/models/%2e%2e/%2e%2e/pause/": 404,
			"/v1/models/%2e":                  404,
			"/v1/models/%2fpause":             404,
			"/v1/models%2f":                   200,
			"/pause":                          404,
			"/v1/kv_connector/rpc":            404,
			"/inference/v1/generate":          404,
			"/abort_requests":                 404,
		} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				req, _ := http.NewRequest(method, "http://"+f.url+path, strings.NewReader("{}"))
				resp, err := f.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != want {
					t.Errorf("%s %s: %d, want %d", method, path, resp.StatusCode, want)
				}
			}
		}
	})
}
