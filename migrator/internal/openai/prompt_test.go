package openai

import (
	"slices"
	"testing"
)

func TestPromptIDs(t *testing.T) {
	for body, want := range map[string][]uint32{
		`{"prompt":[1, 2,3]}`:                    {1, 2, 3},
		`{"prompt":[[4,5]]}`:                     {4, 5},
		`{"prompt":[]}`:                          {},
		`{"prompt":"1,2"}`:                       nil,
		`{"prompt":["1"]}`:                       nil,
		`{"prompt":[[1],[2]]}`:                   nil,
		`{"prompt":[1.5]}`:                       nil,
		`{"prompt":[-1]}`:                        nil,
		`{"prompt":[4294967296]}`:                nil,
		`{"prompt":null}`:                        nil,
		`{}`:                                     nil,
		`{"prompt":[1],"stream":"yes"}`:          nil, // unreadable
		`{"prompt":[1],"prompt":[2,4294967295]}`: {2, 4294967295},
	} {
		r, err := Parse(Completions, []byte(body))
		if got := r.PromptIDs(); err != nil || !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s: %v, %v, want %v", body, got, err, want)
		}
	}
	if r, _ := Parse(Chat, []byte(`{"prompt":[1]}`)); r.PromptIDs() != nil {
		t.Error("the prompt of a chat request is its messages")
	}
}

// TestTokenizeBody checks which requests /tokenize answers as the endpoint does, and what it is asked.
func TestTokenizeBody(t *testing.T) {
	for _, test := range []struct {
		endpoint   Endpoint
		body, want string
	}{
		{Completions, `{"model":"m","prompt":"x","max_tokens":3}`, `{"model":"m","prompt":"x"}`},
		{Completions, `{"add_special_tokens": false, "prompt":"x","messages":[]}`, `{"add_special_tokens": false,"prompt":"x"}`},
		{Completions, `{"prompt":[1]}`, ""},
		{Completions, `{"prompt":["x"]}`, ""},
		{Completions, `{"prompt":"x","truncate_prompt_tokens":5}`, ""},
		{Completions, `{"prompt":"x","truncate_prompt_tokens":null,"suffix":null}`, `{"prompt":"x"}`},
		{Completions, `{"model":"m"}`, ""},
		{Completions, `{"prompt":null}`, ""},
		{Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{}],"chat_template_kwargs":{"a":1},"stream":true}`,
			`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{}],"chat_template_kwargs":{"a":1}}`},
		{Chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, ""},
		{Chat, `{"messages":[{"role":"user","content":"x"}],"documents":[{}]}`, ""},
		{Chat, `{"messages":[{"role":"user","content":"x"}],"tool_choice":"none"}`, ""},
		{Chat, `{"messages":{}}`, ""},

		// A client's template is never run by /tokenize, however it is spelled.
		{Chat, `{"messages":[{"role":"user","content":"x"}],"chat_template":"{{ messages }}"}`, ""},
		{Chat, `{"messages":[{"role":"user","content":"x"}],"chat_templ\u0061te":"{{ messages }}"}`, ""},
		{Chat, `{"chat_template":null,"messages":[{"role":"user","content":"x"}],"chat_template":"{{ messages }}"}`, ""},
		{Chat, `{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":1,"chat_template":"{{ messages }}"}}`, ""},
		{Chat, `{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"tokenize":true}}`, ""},
		{Chat, `{"messages":[{"role":"user","content":"x"}],"chat_template":null}`, `{"messages":[{"role":"user","content":"x"}]}`},
		{Completions, `{"prompt":"x","chat_template_kwargs":{"tokenize":true}}`, `{"prompt":"x"}`},
		{Chat, `{"messages":[{"role":"user","content":"x"}],"return_token_strs":true,"mm_x":1}`, `{"messages":[{"role":"user","content":"x"}]}`},
	} {
		r, err := Parse(test.endpoint, []byte(test.body))
		if got := r.TokenizeBody(); err != nil || string(got) != test.want {
			t.Errorf("%s\n got %s, %v\nwant %s", test.body, got, err, test.want)
		}
	}
}

func TestParseTokens(t *testing.T) {
	got, err := ParseTokens([]byte(`{"count":3,"max_model_len":9,"tokens":[1, 7,4294967295],"token_strs":null}`))
	if err != nil || !slices.Equal(got, []uint32{1, 7, 4294967295}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, answer := range []string{``, `[]`, `{}`, `{"tokens":3}`, `{"tokens":["1"]}`, `{"tokens":[-1]}`, `{"tokens":[1}`} {
		if got, err := ParseTokens([]byte(answer)); err == nil {
			t.Errorf("%s: %v", answer, got)
		}
	}
}

// FuzzParseTokens feeds the reader what an engine could answer.
func FuzzParseTokens(f *testing.F) {
	f.Add([]byte(`{"tokens":[1,2]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if ids, err := ParseTokens(answer); err == nil && len(ids) > len(answer) {
			t.Errorf("%d ids in %d bytes", len(ids), len(answer))
		}
	})
}

func TestCacheSalt(t *testing.T) {
	for body, want := range map[string]string{`{"cache_salt":"tenant"}`: "tenant", `{"cache_salt":"a\u0062"}`: "ab", `{"cache_salt":7}`: "", `{}`: ""} {
		r, err := Parse(Chat, []byte(body))
		if err != nil || r.CacheSalt != want {
			t.Errorf("%s: %q, %v, want %q", body, r.CacheSalt, err, want)
		}
		if q, ok := r.Resume(); want == "tenant" && (!ok || string(q.rest) != `,"cache_salt":"tenant"`) {
			t.Errorf("a later leg has %q of it", q.rest)
		}
	}
}
