package openai

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

func TestResumeRefused(t *testing.T) {
	for _, body := range []string{
		`{"prompt":"x","user":"` + strings.Repeat("x", MaxResume) + `"}`,
		`{"prompt":"x","max_tokens":"20"}`, `{"prompt":"x","max_tokens":20.5}`, `{"prompt":"x","min_tokens":"1"}`,
		`{"prompt":"x","max_completion_tokens":20}`, `{"prompt":"x","logprobs":3}`, `{"prompt":"x","vllm_xargs":{"a":1}}`,
		`{"prompt":"x","stop":["a"]}`, `{"prompt":"x","logits_processors":["a"]}`,
	} {
		r := testkit.Must(Parse(Completions, []byte(body)))
		if _, ok := r.Resume(); ok {
			t.Errorf("%.60s: can be resumed", body)
		}
	}
	// A long prompt is not kept, and min_tokens pins a request only until it is
	// reached.
	r, _ := Parse(Completions, []byte(`{"prompt":"`+strings.Repeat("x", 1<<20)+`","min_tokens":3}`))
	if _, ok := r.Resume(); !ok || r.MinOutput != 3 || !r.Features.Has(policies.MinTokens) {
		t.Errorf("%+v", r.Features)
	}
}

func TestEditUsage(t *testing.T) {
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8,"created_cache_tokens":4,"multimodal_tokens":null},"x":null}}` + "\n\n"
	for cached, want := range map[int]string{-1: "null", 0: "0", 3: "3"} {
		got := string(parse(t, usage).Append(nil, Edit{Usage: &Usage{Prompt: 5, Output: 6, Cached: cached}}))
		if got != `data: {"choices":[],"usage":{"prompt_tokens":5,"total_tokens":11,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":`+want+`,"created_cache_tokens":null,"multimodal_tokens":null},"x":null}}`+"\n\n" {
			t.Errorf("cached %d: %s", cached, got)
		}
	}
}
