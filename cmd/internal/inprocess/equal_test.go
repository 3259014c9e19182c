package inprocess

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

// withoutIdentity returns an answer without its id and time, which differ between answers.
func withoutIdentity(b []byte) string {
	return identity.ReplaceAllString(string(b), `"$1":0`)
}

var identity = regexp.MustCompile(`"(id|created)":(?:"[^"]*"|[0-9]+)`)

// An engine puts several tokens into one event if the client reads too slowly, which can happen to
// any client on a busy host. pieces matches the parts that then differ.
var pieces = regexp.MustCompile(`"(text|content)":"((?:[^"\\]|\\.)*)"|"(token_ids)":\[([0-9,]*)\]`)

// joinEvents moves the texts and ids of a stream's events out of the events and concatenates them. It
// drops the events that are then empty: those in the middle.
func joinEvents(answer string) string {
	var text, ids strings.Builder
	var events []string
	for i, event := range strings.Split(answer, "\n\n") {
		for _, m := range pieces.FindAllStringSubmatch(event, -1) {
			text.WriteString(m[2])
			if m[4] != "" {
				ids.WriteString(m[4] + ",")
			}
		}
		if i == 0 || !strings.Contains(event, `"finish_reason":null`) || strings.Contains(event, `"role":`) {
			events = append(events, pieces.ReplaceAllString(event, `"$1$3":`))
		}
	}
	return strings.Join(append(events, text.String(), ids.String()), "\n\n")
}

// comparison counts the compared answers.
type comparison struct{ answers, streams, exact int }

// requireEqual checks that two answers are equal byte for byte, except for the grouping of a stream's
// tokens into events. It repeats the request if the first and last event differ, because they may
// have been merged into one.
func (c *comparison) requireEqual(t *testing.T, what string, ask func() (got, want string)) {
	t.Helper()
	c.answers++
	var got, want string
	for range 5 {
		got, want = ask()
		if !strings.Contains(want, "\ndata: ") {
			break
		}
		if got == want {
			c.exact++
		}
		if joinEvents(got) == joinEvents(want) {
			c.streams++
			return
		}
	}
	if got != want {
		t.Fatalf("%s\n got %s\nwant %s", what, got, want)
	}
}

// TestEquality checks that an answer through the data plane and the front end equals the engine's
// own, byte for byte, except for its id and time.
func TestEquality(t *testing.T) {
	idlePlanes(t, onBoth, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 1, edit: func(f *config.Fleet) { f.Speed = 4 }})
		direct := r.replica("r0").Engine
		ask := func(base, path, body string) string {
			t.Helper()
			sent := io.Reader(strings.NewReader(body))
			if len(body) > 1000 {
				sent = chunked{sent} // without content-length
			}
			resp, err := r.client.Post(base+path, "application/json", sent)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
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
		var c comparison
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
						// The front end relays an answer that is not streamed until it knows its
						// shape, and then assembles it.
						for range 2 {
							c.requireEqual(t, path+" "+body, func() (got, want string) { return ask(r.URL(), path, body), ask(direct, path, body) })
						}
					}
				}
			}
		}
		for _, body := range []string{string(prompt(220<<10, 3)), string(withStream(prompt(220<<10, 3)))} {
			ask(direct, "/v1/completions", body)
			c.requireEqual(t, "220 KiB", func() (got, want string) {
				return ask(r.URL(), "/v1/completions", body), ask(direct, "/v1/completions", body)
			})
		}
		// Requests that the front end passes on unchanged.
		for _, body := range []string{`{"model":"m","prompt":"Once upon a time"}`, `{"model":"m","messages":[{"role":"user","content":"x"}]}`} {
			c.requireEqual(t, "/tokenize", func() (got, want string) { return ask(r.URL(), "/tokenize", body), ask(direct, "/tokenize", body) })
		}
		if c.exact == 0 {
			t.Error("no stream had its tokens in the events that the engine's own had")
		}
		t.Logf("%d answers equal the engine's own, %d of %d streams event by event", c.answers, c.exact, c.streams)
	})
}
