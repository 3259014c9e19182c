package emulator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// The server's limit of tokens applies to requests from then on.
func TestMaxNewTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{Faults: Faults{MaxNewTokens: 7}})
		defer stop()
		for _, limit := range []int{7, 3} {
			testkit.NoError(t, e.SetFaults(Faults{MaxNewTokens: limit}))
			c := complete(t, e, `{"prompt":"a","max_tokens":30,"ignore_eos":true}`)
			if c.Usage.CompletionTokens != limit || c.Choices[0].FinishReason != "length" {
				t.Errorf("%d tokens, %s, want %d", c.Usage.CompletionTokens, c.Choices[0].FinishReason, limit)
			}
		}
	})
}

// Without --enable-prompt-tokens-details, a whole answer has null and a stream has no such field.
func TestNoPromptDetails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{Faults: Faults{NoPromptDetails: true}})
		defer stop()
		if got := serveRequest(e, post("/v1/completions", `{"prompt":"a","max_tokens":1}`)).Body.String(); !strings.Contains(got, `"completion_tokens":1,"prompt_tokens_details":null,"completion_tokens_details":null}`) {
			t.Error(got)
		}
		stream := serveRequest(e, post("/v1/completions", `{"prompt":"a","max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}`)).Body.String()
		if !strings.Contains(stream, `"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1},"system_fingerprint"`) || len(events(t, stream)) != 2 {
			t.Error(stream)
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

// A full KV cache preempts the younger of two streams, which pauses until there is room, in the
// middle of its text, and is counted as waiting.
func TestPreemptionPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		want := oracle(t, promptOf(30, 2), 40)
		older, younger := make(chan []model.Token, 1), make(chan []model.Token, 1)
		run := func(seed, tokens int, to chan []model.Token) {
			go func() { _, r := send(t, e, promptOf(30, seed), tokens, nil); to <- r.ids() }()
			time.Sleep(100 * time.Millisecond)
		}
		run(1, 3500, older)
		run(2, 40, younger)
		if w := serveRequest(e, post("/emulator/full", `{"keep":1}`)); w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body)
		}
		time.Sleep(20 * time.Second)
		if len(younger) != 0 || len(older) != 0 || metric(t, e, "vllm:num_preemptions_total") != 1 || metric(t, e, "vllm:num_requests_waiting") != 1 {
			t.Errorf("%d and %d have ended, %v preemptions, %v waiting", len(older), len(younger), metric(t, e, "vllm:num_preemptions_total"), metric(t, e, "vllm:num_requests_waiting"))
		}
		if got := metric(t, e, "vllm:kv_cache_usage_perc"); got < 0.95 {
			t.Errorf("%v of the KV cache is in use", got)
		}
		serveRequest(e, post("/emulator/resume", ""))
		if ids := <-younger; !slices.Equal(ids, want) {
			t.Errorf("%v, want %v", ids, want)
		}
		<-older
		synctest.Wait()
		if got := metric(t, e, "vllm:kv_cache_usage_perc"); got != 0 {
			t.Errorf("%v of the KV cache is in use at the end", got)
		}
	})
}

func TestFaultsRejected(t *testing.T) {
	e := newEngine(t, Config{})
	for path, bodies := range map[string][]string{
		"/emulator/faults": {`{"stream_interval":-1}`, `{"draft_tokens":5000}`, `{"max_new_tokens":-1}`, `{"interval":1}`, `[]`, ``},
		"/emulator/full":   {`{"keep":"x"}`, `{"keep":1}`}, // the second one: the engine does not run
	} {
		for _, body := range bodies {
			if w := serveRequest(e, post(path, body)); w.Code != http.StatusBadRequest {
				t.Errorf("%s %s: status %d", path, body, w.Code)
			}
		}
	}
	if _, err := New(Config{Model: "m", Profile: plainProfile(), Faults: Faults{StreamInterval: -1}}); err == nil {
		t.Error("New accepts a negative interval")
	}
}
