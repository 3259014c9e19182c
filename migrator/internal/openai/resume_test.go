package openai

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// object parses a JSON object without knowing its fields.
func object(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return m
}

func TestResume(t *testing.T) {
	const sampling = `"model":"m","temperature":0.50,"ignore_eos":true,"stop_token_ids":[7]`
	for _, test := range []struct {
		name     string
		endpoint Endpoint
		body     string
		output   int
		want     string // of PromptBody; the ids are 1, 2, 3
	}{
		{"completions", Completions, `{` + sampling + `,"prompt":"long","max_tokens":10,"stream":true,"stream_options":{"include_usage":false},"request_id":"x"}`, 4,
			`{` + sampling + `,"prompt":[1,2,3],"max_tokens":6}`},
		{"the API's default", Completions, `{"prompt":[5],"max_tokens":null}`, 4, `{"prompt":[1,2,3],"max_tokens":12}`},
		{"chat has none", Chat, `{"messages":[{"role":"user","content":"x"}],"return_token_ids":false}`, 4,
			`{"messages":[{"role":"user","content":"."}],"kv_transfer_params":{"prompt_token_ids":[1,2,3]}}`},
		{"chat", Chat, `{"max_completion_tokens":9,"messages":[],"max_tokens":3,"kv_transfer_params":{"x":1}}`, 1,
			`{"messages":[{"role":"user","content":"."}],"kv_transfer_params":{"prompt_token_ids":[1,2,3]},"max_tokens":8}`},
		{"the last one counts", Completions, `{"prompt":"x","max_tokens":3,"max_tokens":30}`, 2, `{"prompt":[1,2,3],"max_tokens":28}`},
		{"min_tokens left", Completions, `{"prompt":"x","max_tokens":30,"min_tokens":9}`, 2, `{"prompt":[1,2,3],"max_tokens":28,"min_tokens":7}`},
		{"min_tokens reached", Completions, `{"prompt":"x","max_tokens":30,"min_tokens":9}`, 9, `{"prompt":[1,2,3],"max_tokens":21}`},
		{"min_tokens above the default", Completions, `{"prompt":"x","min_tokens":20}`, 19, `{"prompt":[1,2,3],"max_tokens":1,"min_tokens":1}`},
	} {
		r, err := Parse(test.endpoint, []byte(test.body))
		if err != nil {
			t.Fatal(err)
		}
		q, ok := r.Resume()
		if !ok {
			t.Errorf("%s: cannot be resumed", test.name)
			continue
		}
		want := object(t, []byte(test.want))
		for name, v := range object(t, []byte(`{"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`)) {
			want[name] = v
		}
		if got := q.PromptBody([]uint32{1, 2, 3}, test.output); !reflect.DeepEqual(object(t, got), want) {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
		// AdoptBody returns the body of the same leg with an empty prompt.
		delete(want, "kv_transfer_params")
		delete(want, "messages")
		delete(want, "prompt")
		want[map[Endpoint]string{Completions: "prompt", Chat: "messages"}[test.endpoint]] = []any{}
		if got := q.AdoptBody(test.output); !reflect.DeepEqual(object(t, got), want) {
			t.Errorf("%s: adopting %s", test.name, got)
		}
		if got := object(t, q.WarmupBody([]uint32{1})); got["max_tokens"] != 1.0 || got["stream"] != nil || got["min_tokens"] != nil {
			t.Errorf("%s: warming %v", test.name, got)
		}
	}
}

func TestResumeOptions(t *testing.T) {
	for body, want := range map[string]string{
		`{"prompt":"x"}`: `{"include_usage":true}`,
		`{"prompt":"x","stream_options":{"include_usage":true,"continuous_usage_stats":true}}`:         `{"include_usage":true,"continuous_usage_stats":true}`,
		`{"prompt":"x","stream_options":{"include_usage":false,"continuous_usage_stats":true,"x":[]}}`: `{"include_usage":true,"x":[]}`,
	} {
		r, _ := Parse(Completions, []byte(body))
		q, ok := r.Resume()
		if !ok || !strings.Contains(string(q.PromptBody(nil, 0)), `"stream_options":`+want+`,`) || strings.Contains(string(q.WarmupBody(nil)), "stream_options") {
			t.Errorf("%s: %v %s", body, ok, q.PromptBody(nil, 0))
		}
	}
}

// FuzzResume checks that the bodies of a request's later legs are JSON objects that name no other
// engine's memory, whatever the client sent.
func FuzzResume(f *testing.F) {
	f.Add([]byte(`{"model":"m","prompt":"x","max_tokens":5,"min_tokens":2,"stream_options":{"include_usage":true}}`), 3)
	f.Add([]byte(`{"messages":[],"vllm_xargs":{"kv_transfer_params":1},"kv_transfer_params":{},"stop_token_ids":[1]}`), 0)
	f.Fuzz(func(t *testing.T, body []byte, output int) {
		for _, e := range []Endpoint{Completions, Chat} {
			r, err := Parse(e, body)
			if err != nil {
				continue
			}
			q, ok := r.Resume()
			if !ok {
				continue
			}
			output = min(max(output, 0), 1<<20)
			ids := []uint32{1, 2}
			for i, leg := range [][]byte{q.PromptBody(ids, output), q.AdoptBody(output), q.WarmupBody(ids)} {
				again, err := Parse(e, leg)
				if err != nil {
					t.Fatalf("%v in %s", err, leg)
				}
				if (i != 2) != again.Stream || again.hasWithheld != (e == Chat && i != 1) || again.MaxOutput > 0 && i != 2 && int(again.MaxOutput) != q.Remaining(output) {
					t.Fatalf("leg %d of %s: %s", i, body, leg)
				}
			}
			if _, err := WithTransferParams(q.AdoptBody(output), []byte(`{"cascade_reservation":"x"}`), 1); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestResumeRefused(t *testing.T) {
	for _, body := range []string{
		`{"prompt":"x","user":"` + strings.Repeat("x", MaxResume) + `"}`,
		`{"prompt":"x","max_tokens":"20"}`, `{"prompt":"x","max_tokens":20.5}`, `{"prompt":"x","min_tokens":"1"}`,
		`{"prompt":"x","max_completion_tokens":20}`, `{"prompt":"x","logprobs":3}`, `{"prompt":"x","vllm_xargs":{"a":1}}`,
		`{"prompt":"x","stop":["a"]}`, `{"prompt":"x","logits_processors":["a"]}`,
	} {
		r, err := Parse(Completions, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
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

func TestWithTransferParams(t *testing.T) {
	got, err := WithTransferParams([]byte(`{"prompt":[],"n":1} `), []byte(`{"cascade_reservation":"r0/1"}`), 5)
	if err != nil || string(got) != `{"prompt":[],"n":1,"kv_transfer_params":{"cascade_reservation":"r0/1","cascade_prompt":5}}` {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range [][2]string{{`{}`, `{"a":1}`}, {`{"a":1}`, `{}`}, {`[]`, `{"a":1}`}, {`{"a":1}`, `7`}, {`{"a":1}`, `{`}, {`{"a":1`, `{"a":1}`}} {
		if got, err := WithTransferParams([]byte(bad[0]), []byte(bad[1]), 1); err == nil {
			t.Errorf("%v: %s", bad, got)
		}
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
