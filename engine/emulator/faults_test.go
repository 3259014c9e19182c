package emulator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// events returns the events of a streamed answer but the last, [DONE].
func events(t *testing.T, body string) (all []reply) {
	t.Helper()
	for part := range strings.SplitSeq(strings.TrimSuffix(body, "data: [DONE]\n\n"), "\n\n") {
		if part == "" {
			continue
		}
		var ev reply
		testkit.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(part, "data: ")), &ev))
		all = append(all, ev)
	}
	return all
}

// chunks returns the number of tokens of each chunk of a stream, and all its ids.
func chunks(t *testing.T, e *Engine, prompt string, tokens int) (sizes []int, ids []model.Token) {
	t.Helper()
	body := fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true,"return_token_ids":true}`, prompt, tokens)
	for _, ev := range events(t, serveRequest(e, post("/v1/completions", body)).Body.String()) {
		sizes, ids = append(sizes, len(ev.Choices[0].TokenIDs)), append(ids, ev.Choices[0].TokenIDs...)
	}
	return sizes, ids
}

// Chunks of several tokens have the ids of single ones.
func TestChunksOfSeveralTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		plain, want := chunks(t, e, "a", 30)
		if !slices.Equal(plain, slices.Repeat([]int{1}, 30)) {
			t.Errorf("chunks of a plain engine: %v", plain)
		}
		for _, tc := range []struct {
			faults string
			sizes  []int // nil: they vary
		}{
			{`{"stream_interval":8}`, []int{1, 8, 8, 8, 5}},
			{`{"stream_interval":64}`, []int{1, 29}},
			{`{"draft_tokens":3}`, nil},
			{`{"stream_interval":2,"draft_tokens":3}`, nil},
			{`{}`, plain},
		} {
			if w := serveRequest(e, post("/emulator/faults", tc.faults)); w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", tc.faults, w.Code, w.Body)
			}
			sizes, ids := chunks(t, e, "a", 30)
			if !slices.Equal(ids, want) {
				t.Errorf("%s: ids %v, want %v", tc.faults, ids, want)
			}
			if tc.sizes != nil && !slices.Equal(sizes, tc.sizes) {
				t.Errorf("%s: chunks %v, want %v", tc.faults, sizes, tc.sizes)
			}
			if tc.sizes == nil && (slices.Max(sizes) < 3 || slices.Min(sizes[1:len(sizes)-1]) == slices.Max(sizes)) {
				t.Errorf("%s: chunks %v do not vary", tc.faults, sizes)
			}
		}
		if got := complete(t, e, `{"prompt":"a","max_tokens":30,"ignore_eos":true,"return_token_ids":true}`).Choices[0].TokenIDs; !slices.Equal(got, want) {
			t.Errorf("an answer that is not streamed: %v", got)
		}
	})
}

// A connector that answers null keeps no blocks; one that answers another number of tokens does.
func TestTransferParamsFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, _ := startPair(t, nil)
		ask := func(f Faults) map[string]any {
			testkit.NoError(t, e.SetFaults(f))
			code, r := send(t, e, promptOf(100, 1), 1, map[string]any{"do_remote_decode": true})
			if code != http.StatusOK {
				t.Fatal(code)
			}
			return r.Params
		}
		if p := ask(Faults{NoTransferParams: true}); p != nil || metric(t, e, "vllm:kv_cache_usage_perc") != 0 {
			t.Errorf("params %v, %v of the blocks kept", p, metric(t, e, "vllm:kv_cache_usage_perc"))
		}
		for _, off := range []int{-1, 0, 3} {
			if p := ask(Faults{TransferTokens: off}); p["remote_num_tokens"] != float64(100+off) {
				t.Errorf("remote_num_tokens is %v", p["remote_num_tokens"])
			}
		}
	})
}
