package emulator

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	wire "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// A reservation that cannot be adopted is rejected with a reason, and remains reserved.
func TestAdoptionRefused(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	adopt := func(more string) *httptest.ResponseRecorder {
		return serveRequest(s.Engine, post("/v1/completions", `{"prompt":[],"max_tokens":3,"ignore_eos":true`+more+`}`))
	}
	const r = `,"kv_transfer_params":{"cascade_reservation":"r"}`
	expect := func(what string, w *httptest.ResponseRecorder, code int, words string) {
		t.Helper()
		if w.Code != code || !strings.Contains(w.Body.String(), words) {
			t.Errorf("%s: %d %s, want %d and %q", what, w.Code, w.Body, code, words)
		}
	}
	expect("unknown", adopt(r), 404, "no such reservation")
	testkit.NoError(t, s.call(wire.Call{Op: wire.Reserve, Reservation: "r", Tokens: 64}))
	expect("unfilled", adopt(r), 409, "never filled")
	testkit.NoError(t, s.call(wire.Call{Op: wire.Fill, Reservation: "r", IDs: []uint32{1, 2, 3}, Computed: 2}))
	expect("with a prompt", serveRequest(s.Engine, post("/v1/completions", `{"prompt":[1]`+r+`}`)), 400, "must be empty")
	expect("with messages", serveRequest(s.Engine, post("/v1/chat/completions", `{"messages":[{"role":"user"}]`+r+`}`)), 400, "must be empty")
	expect("with ids", serveRequest(s.Engine, post("/v1/chat/completions", `{"kv_transfer_params":{"cascade_reservation":"r","prompt_token_ids":[1]}}`)), 400, "must be empty")
	expect("too long", serveRequest(s.Engine, post("/v1/completions", `{"prompt":[],"max_tokens":5000`+r+`}`)), 400, "maximum context length")
	expect("a nameless one", adopt(`,"kv_transfer_params":{"cascade_reservation":""}`), 400, "1 to 256 bytes")
	s.waitForStats(t, "still reserved", func(st batch.Stats) bool { return st.Reserved == 4 })
	answer, cancel := s.run(t, "", `{"prompt":[],"max_tokens":4000,"ignore_eos":true`+r+`}`)
	s.waitForStats(t, "adopted", func(st batch.Stats) bool { return st.Running == 1 && st.Reserved == 0 })
	expect("adopted", adopt(r), 409, "has adopted")
	if err := s.call(wire.Call{Op: wire.Release, Reservation: "r"}); err != nil {
		t.Error(err)
	}
	for _, err := range []error{
		s.call(wire.Call{Op: wire.Fill, Reservation: "r", From: 3, IDs: []uint32{4}, Computed: 3}),
		s.call(wire.Call{Op: wire.Reserve, Reservation: "r", Tokens: 64}),
	} {
		if code(err) != wire.InUse {
			t.Errorf("of an adopted one: %v", err)
		}
	}
	cancel()
	<-answer
	s.waitForStats(t, "the adopted request's client has gone", empty)
	expect("over", adopt(r), 404, "no such reservation")

	plain, stop := start(t, Config{})
	defer stop()
	for w := serveRequest(plain, post("/v1/completions", `{"prompt":[]`+r+`}`)); ; w = serveRequest(plain, post("/v1/completions", `{"prompt":[]`+r+`}`)) {
		if w.Code != http.StatusServiceUnavailable { // the engine does not run yet
			expect("no table", w, 400, "serves no block table")
			break
		}
	}
}

// A reservation is adopted even if its last position, or its whole text, is not computed: the
// engine computes the rest.
func TestAdoptComputesTheRest(t *testing.T) {
	s := serve(t, Config{Speed: 100})
	const ids = "[11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30]"
	want := complete(t, s.Engine, `{"prompt":`+ids+`,"max_tokens":20,"ignore_eos":true,"return_token_ids":true}`).Choices[0].TokenIDs
	list := make([]uint32, 20)
	for i := range list {
		list[i] = uint32(11 + i)
	}
	testkit.NoError(t, s.call(wire.Call{Op: wire.Reserve, Reservation: "r", Tokens: 10}))
	testkit.NoError(t, s.call(wire.Call{Op: wire.Fill, Reservation: "r", IDs: list}))
	got := complete(t, s.Engine, `{"prompt":[],"max_tokens":20,"ignore_eos":true,"return_token_ids":true,"kv_transfer_params":{"cascade_reservation":"r"}}`)
	if fmt.Sprint(got.Choices[0].TokenIDs) != fmt.Sprint(want) || got.Usage.PromptTokens != 20 || got.Usage.CompletionTokens != 20 || got.Usage.Details.Cached != 0 {
		t.Errorf("%+v, want ids %v", got, want)
	}
	s.waitForStats(t, "at the end", empty)
}

// A prefix is pinned only for requests of the same model or adapter and the same salt, as the prefix cache
// finds it.
func TestPinPrefixRoots(t *testing.T) {
	s := serve(t, Config{Speed: 20, Adapters: []string{"lora"}})
	ids := make([]uint32, 40)
	prompt := strings.Repeat("7,", 39) + "7"
	for i := range ids {
		ids[i] = 7
	}
	roots := []struct{ model, salt, more string }{
		{"", "", ""},
		{"", "tenant", `,"cache_salt":"tenant"`},
		{"lora", "", `,"model":"lora"`},
		{"lora", "tenant", `,"model":"lora","cache_salt":"tenant"`},
	}
	for i, x := range roots {
		if w := serveRequest(s.Engine, post("/v1/completions", `{"prompt":[`+prompt+`],"max_tokens":1`+x.more+`}`)); w.Code != http.StatusOK {
			t.Fatal(w.Body)
		}
		for j, y := range roots {
			r, err := s.session.Call(t.Context(), wire.Call{Op: wire.Pin, Reservation: "r", Model: y.model, CacheSalt: y.salt, IDs: ids})
			testkit.NoError(t, err)
			if want := uint64(32); (r.Cached == want) != (j <= i) {
				t.Errorf("after %+v, %d tokens are pinned for %+v", x, r.Cached, y)
			}
			testkit.NoError(t, s.call(wire.Call{Op: wire.Release, Reservation: "r"}))
		}
	}
	if err := s.call(wire.Call{Op: wire.Pin, Reservation: "r", Model: "other", IDs: ids}); code(err) != wire.Invalid {
		t.Error(err)
	}
	s.waitForStats(t, "at the end", empty)
}
