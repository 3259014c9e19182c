package inprocess

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// withoutIdentity returns an answer without its id and time, which differ between answers.
func withoutIdentity(b []byte) string {
	return identity.ReplaceAllString(string(b), `"$1":0`)
}

var identity = regexp.MustCompile(`"(id|created)":(?:"[^"]*"|[0-9]+)`)

// TestEquality checks that an answer through the data plane and the front end equals the engine's
// own, byte for byte, except for its id and time.
func TestEquality(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 1, edit: func(f *config.Fleet) { f.Speed = 5 }})
		direct := r.replica("r0").Engine
		ask := func(base, path, body string) string {
			t.Helper()
			sent := io.Reader(strings.NewReader(body))
			if len(body) > 1000 {
				sent = chunked{sent} // without content-length
			}
			resp, err := r.HTTP.Post(base+path, "application/json", sent)
			testkit.NoError(t, err)
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			testkit.NoError(t, err)
			return fmt.Sprintf("%d %s\n%s", resp.StatusCode, resp.Header.Get("content-type"), withoutIdentity(b))
		}
		prompts := map[string][]string{
			"/v1/completions":      {`"prompt":"Once \"upon\" a time, 龍 "`, `"prompt":[1,2,3,4000,50000]`, `"prompt":""`},
			"/v1/chat/completions": {`"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Häh?\n"}]`, `"messages":[]`},
		}
		options := []string{
			``, `,"max_tokens":1`, `,"max_tokens":8,"ignore_eos":true`, `,"max_tokens":12,"stop":["the","of"]`,
			`,"max_tokens":8,"return_token_ids":true`, `,"max_tokens":0`, `,"max_tokens":200000`, `,"n":2`, `,"model":"other"`, `,"temperature":"hot"`,
		}
		answers, streams, exact := 0, 0, 0
		requireEqual := func(path, body string) {
			t.Helper()
			answers++
			var got, want string
			for range 5 {
				got, want = ask(r.URL(), path, body), ask(direct, path, body)
				if !strings.Contains(want, "\ndata: ") {
					break
				}
				if got == want {
					exact++
				}
				// A client that reads too slowly, which can happen to any on a busy host, gets several tokens in one event.
				if got, want = streamedText(got), streamedText(want); got == want {
					streams++
					return
				}
			}
			if got != want {
				t.Fatalf("%s %.300s\n got %s\nwant %s", path, body, got, want)
			}
		}
		for path, list := range prompts {
			for _, p := range list {
				for _, stream := range []string{``, `,"stream":true`, `,"stream":true,"stream_options":{"include_usage":true}`} {
					for _, option := range options {
						if option == "" && strings.Contains(path, "chat") {
							option = `,"max_tokens":8` // otherwise chat continues to the end of the context
						}
						body := fmt.Sprintf(`{"model":%q,%s%s%s}`, llm, p, stream, option)
						// An answer reports prefix cache hits: the first request fills the cache.
						ask(direct, path, body)
						requireEqual(path, body)
						if stream == "" {
							// The front end relays an answer that is not streamed until it knows its
							// shape, and then assembles it.
							requireEqual(path, body)
						}
					}
				}
			}
		}
		for _, body := range []string{string(prompt(220<<10, 3)), string(harness.WithStream(prompt(220<<10, 3)))} {
			ask(direct, "/v1/completions", body)
			requireEqual("/v1/completions", body)
		}
		// Requests that the front end passes on unchanged.
		for _, body := range []string{`{"model":"m","prompt":"Once upon a time"}`, `{"model":"m","messages":[{"role":"user","content":"x"}]}`} {
			requireEqual("/tokenize", body)
		}
		if exact == 0 {
			t.Error("no stream had its tokens in the events that the engine's own had")
		}
		t.Logf("%d answers equal the engine's own, %d of %d streams event by event", answers, exact, streams)
	})
}
