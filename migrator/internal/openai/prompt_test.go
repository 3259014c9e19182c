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

func TestIDsBelow(t *testing.T) {
	f := &Fields{IDLists: map[string]bool{"prompt": false, "input_ids": true, "query": true}}
	for body, want := range map[string]bool{
		`{}`: true, `{"prompt":"9"}`: true, `{"prompt":["9","x"]}`: true, `{"prompt":[]}`: true, `{"other":[9]}`: true, `{"input_ids":null}`: true,
		`{"prompt":[1, 7]}`: true, `{"prompt":[[1],[7.0]]}`: true, `{"input_ids":[0,7]}`: true,
		`{"prompt":[1, 8]}`: false, `{"prompt":[[1],[2,8]]}`: false, `{"prompt":[-1]}`: false, `{"prompt":[1e9]}`: false, `{"prompt":[1e999]}`: false,
		`{"prompt":[1.5]}`: false, `{"prompt":[1,"9"]}`: false, `{"prompt":[1,null]}`: false, `{"prompt":[["9"]]}`: false, `{"prompt":[[1],["x"]]}`: false,
		`{"query":["9"]}`: false, `{"query":[{"type":"text","text":"9"}]}`: true, `{"input_ids":["9"]}`: false, `{"prompt":[9],"prompt":[1]}`: false,
	} {
		r, err := f.Parse(Chat, []byte(body))
		if got := r.IDsBelow(8); err != nil || got != want {
			t.Errorf("%s: %v, %v", body, got, err)
		}
	}
}

func TestParseTokens(t *testing.T) {
	got, err := ParseTokens([]byte(`{"count":3,"max_model_len":9,"tokens":[1, 7,4294967295],"token_strs":null}`), "tokens")
	if err != nil || !slices.Equal(got, []uint32{1, 7, 4294967295}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, answer := range []string{``, `[]`, `{}`, `{"tokens":3}`, `{"tokens":["1"]}`, `{"tokens":[-1]}`, `{"tokens":[1}`} {
		if got, err := ParseTokens([]byte(answer), "tokens"); err == nil {
			t.Errorf("%s: %v", answer, got)
		}
	}
}

// FuzzParseTokens feeds the reader what an engine could answer.
func FuzzParseTokens(f *testing.F) {
	f.Add([]byte(`{"tokens":[1,2]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if ids, err := ParseTokens(answer, "tokens"); err == nil && len(ids) > len(answer) {
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
		if q, ok := r.Resume(); want == "tenant" && (!ok || string(q.Rest) != `,"cache_salt":"tenant"`) {
			t.Errorf("a later leg has %q of it", q.Rest)
		}
	}
}
