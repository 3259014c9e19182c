package openai

import (
	"encoding/json"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

func TestStreamBody(t *testing.T) {
	const all = `"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}`
	for _, test := range []struct {
		body, want string
	}{
		{`{"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x",` + all + `}`},
		{`{}`, `{` + all + `}`},
		{`{"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`, `{"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":false,"x": 1.50}`, `{"x": 1.50,` + all + `}`},
		{`{"stream":true,"stream_options":{"include_usage":false,"continuous_usage_stats":true,"new":[1]}}`,
			`{"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true,"new":[1]}}`},
		{`{"stream":true,"kv_transfer_params":{"a":1},"k":2,"kv_transfer_params":3}`, `{"stream":true,"k":2,"return_token_ids":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":true,"kv_transfer\u005fparams":{"a":1}}`, `{"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":true,"vllm_xargs":{"kv_transfer_params":"x","mine":"y"}}`, `{"stream":true,"vllm_xargs":{"mine":"y"},"return_token_ids":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":true,"stream":false}`, `{` + all + `}`},
		{`{"stream":true,"echo":true}`, `{"stream":true,"echo":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":true,"n":2}`, `{"stream":true,"n":2,"return_token_ids":true}`},
	} {
		r, err := Parse(Completions, []byte(test.body))
		if err != nil {
			t.Fatalf("%s: %v", test.body, err)
		}
		if got := string(r.StreamBody()); got != test.want {
			t.Errorf("%s\n got %s\nwant %s", test.body, got, test.want)
		}
	}
}

func TestPlainBody(t *testing.T) {
	same := `{ "stream" : false, "prompt":"x" }`
	r, _ := Parse(Completions, []byte(same))
	if got := r.PlainBody(); &got[0] != &r.body[0] {
		t.Error("a body with nothing to hide is copied")
	}
	r, _ = Parse(Completions, []byte(`{"ec_transfer_params":1,"stream":false,"return_token_ids":null,"vllm_xargs":{}}`))
	if got := string(r.PlainBody()); got != `{"stream":false,"return_token_ids":null,"vllm_xargs":{}}` {
		t.Errorf("plain: %s", got)
	}
}

func TestFeatures(t *testing.T) {
	for _, test := range []struct {
		field string
		want  policies.Features
	}{
		{`"n":1`, 0}, {`"n":null`, 0}, {`"n":2`, policies.Choices}, {`"n":"2"`, policies.Choices | policies.Unreadable}, {`"best_of":3`, policies.Choices}, {`"use_beam_search":true`, policies.Choices},
		{`"prompt":"x"`, 0}, {`"prompt":[1,2]`, 0}, {`"prompt":["x"]`, 0}, {`"prompt":[[1,2]]`, 0}, {`"prompt":["x","y"]`, policies.Prompts}, {`"prompt":[[1],[2]]`, policies.Prompts},
		{`"echo":true`, policies.Echo}, {`"echo":false`, 0}, {`"logprobs":3`, 0}, {`"prompt_logprobs":1`, policies.PromptLogprobs},
		{`"tools":[]`, 0}, {`"tools":[{}]`, policies.Tools}, {`"tool_choice":"none"`, 0}, {`"tool_choice":"auto"`, policies.Tools}, {`"tool_choice":"required"`, policies.ForcedTools}, {`"tool_choice":{"type":"function"}`, policies.ForcedTools},
		{`"response_format":{"type":"text"}`, 0}, {`"response_format":{"type":"json_object"}`, policies.Structured}, {`"guided_json":{}`, policies.Structured},
		{`"presence_penalty":0`, 0}, {`"presence_penalty":0.5`, policies.Penalties}, {`"min_tokens":3`, policies.MinTokens}, {`"bad_words":["x"]`, policies.BadWords}, {`"thinking_token_budget":9`, policies.ThinkingBudget},
		{`"seed":0`, policies.Seed}, {`"seed":1,"temperature":0`, 0}, {`"temperature":0.0,"seed":1`, 0}, {`"stop":"x"`, policies.Stop}, {`"stop":[]`, 0}, {`"stop":""`, 0}, {`"stream":"yes"`, policies.Unreadable}, {`"stream_options":7`, policies.Unreadable},
		{`"messages":[{"role":"user","content":"hi"}]`, 0}, {`"messages":[{"content":[{"type":"text"}]}]`, 0}, {`"messages":[{"content":[{"type":"image_url"}]}]`, policies.Multimodal},
		{`"include_reasoning":false`, policies.HiddenTokens}, {`"temperature":0.5`, 0},
	} {
		r := testkit.Must(Parse(Chat, []byte("{"+test.field+"}")))
		if r.Features != test.want {
			t.Errorf("%s: %b, want %b", test.field, r.Features, test.want)
		}
	}
	for body, want := range map[string]bool{`{}`: true, `{"stream":true}`: false, `{"n":2}`: false, `{"stream_options":{}}`: false, `{"logprobs":1}`: false, `{"logprobs":null}`: true, `{"logprobs":0}`: false, `{"stop":"x"}`: true} {
		if r, _ := Parse(Completions, []byte(body)); r.Assemblable() != want {
			t.Errorf("%s: assemblable is %t", body, !want)
		}
	}
	r, _ := Parse(Chat, []byte(`{"model":"a","max_completion_tokens":5,"max_tokens":9}`))
	if r.Model != "a" || r.MaxOutput != 5 {
		t.Errorf("model %q, max %d", r.Model, r.MaxOutput)
	}
}

// TestChoices checks how many sequences are generated for a prompt, as the most lenient engine reads it.
func TestChoices(t *testing.T) {
	for body, want := range map[string]int{
		`{}`: 1, `{"n":3}`: 3, `{"n":"3"}`: 3, `{"n":3.0}`: 3, `{"n":4,"n":2}`: 4, `{"n":2,"best_of":5}`: 5, `{"n":null}`: 1, `{"n":-7}`: 1, `{"n":0}`: 1,
		`{"n":1e9}`: MaxChoices, `{"n":[7]}`: 1, `{"x":{"n":7}}`: 1, `{"n":true}`: 1,
	} {
		if r, err := Parse(Chat, []byte(body)); err != nil || r.Choices != want {
			t.Errorf("%s: %d choices, %v; want %d", body, r.Choices, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for body, want := range map[string]string{
		``: "not valid JSON at byte 0", `[]`: "not a JSON object", `{"a":1`: "not valid JSON at byte 6", `{"a":NaN}`: "not valid JSON at byte 6", `{} {}`: "not valid JSON at byte 4",
		`{"a":` + strings.Repeat("[", 1<<20): "nested deeper than 512 levels at byte 516",
	} {
		if _, err := Parse(Completions, []byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: %v, want %q", body, err, want)
		}
	}
}

func FuzzRequest(f *testing.F) {
	for _, s := range []string{`{"model":"m","prompt":"x"}`, `{"stream":true,"vllm_xargs":{"kv_transfer_params":1},"kv_transfer\u005fparams":{}}`, `{"stream_options":{"include_usage":true},"stream":true}`,
		`{"messages":[{"content":[{"type":"x"}]}],"n":2}`, `{"a":{"b":[1,"\"]}"]}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r, err := Parse(Chat, []byte(body))
		if err != nil {
			if json.Valid([]byte(body)) && strings.HasPrefix(strings.TrimLeft(body, " \t\r\n"), "{") && strings.Count(body, "[")+strings.Count(body, "{") < MaxDepth {
				t.Fatalf("%q is refused: %v", body, err)
			}
			return
		}
		var was map[string]any
		if json.Unmarshal([]byte(body), &was) != nil {
			return
		}
		for name, sent := range map[string][]byte{"plain": r.PlainBody(), "streamed": r.StreamBody()} {
			var got map[string]any
			if err := json.Unmarshal(sent, &got); err != nil {
				t.Fatalf("%s of %q is %q: %v", name, body, sent, err)
			}
			for k, v := range got {
				switch k {
				case "kv_transfer_params", "ec_transfer_params", "request_id":
					t.Fatalf("%s of %q lets %s through", name, body, k)
				case "vllm_xargs":
					if m, ok := v.(map[string]any); ok && (m["kv_transfer_params"] != nil || m["ec_transfer_params"] != nil || m["request_id"] != nil) {
						t.Fatalf("%s of %q lets %s through", name, body, k)
					}
				case "stream", "stream_options", "return_token_ids":
					if name == "streamed" && k == "stream" && v != true && !r.Features.Has(policies.Unreadable) {
						t.Fatalf("streamed %q has stream %v", body, v)
					}
				default:
					if !reflect.DeepEqual(v, was[k]) {
						t.Fatalf("%s of %q changes %q", name, body, k)
					}
				}
			}
			for k := range was {
				if _, ok := got[k]; !ok && !extended.withholds(k) {
					t.Fatalf("%s of %q loses %q", name, body, k)
				}
			}
		}
	})
}

func BenchmarkStreamBody220KiB(b *testing.B) {
	body := []byte(`{"model":"m","prompt":"` + strings.Repeat("lorem ipsum ", 220<<10/12) + `","max_tokens":5}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r := testkit.Must(Parse(Completions, body))
		r.StreamBody()
	}
}

// FuzzEachMember compares eachMember with gjson's own walk.
func FuzzEachMember(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":[1, 2 ,{"c":"]}\""}],"d\u0061":null}`, `[]`, `[1 ,true,"x"]`, ` { } `, `7`, `{"":{},"x":-1.5e3 }`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b := []byte(text)
		if !gjson.ValidBytes(b) || depthExceededAt(b) >= 0 {
			return
		}
		type entry struct{ name, value string }
		var got, want []entry
		eachMember(b, span{0, len(b)}, func(name []byte, whole, value span) bool {
			got = append(got, entry{string(name), string(value.of(b))})
			return true
		})
		if p := gjson.Parse(text); p.IsObject() || p.IsArray() {
			p.ForEach(func(k, v gjson.Result) bool {
				want = append(want, entry{k.Str, v.Raw})
				return true
			})
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is walked as %q, want %q", text, got, want)
		}
	})
}

// TestAttackMembers checks that a body of many small members, or with a model whose name
// is long, is refused, and that reading it costs no memory beyond the body's own.
func TestAttackMembers(t *testing.T) {
	for name, body := range map[string]string{
		"members": `{"":0` + strings.Repeat(`,"":0`, 16<<20/5-1) + "}",
		"model":   `{"model":"` + strings.Repeat("m", MaxModel+1) + `"}`,
	} {
		text := []byte(body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(Chat, text)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; err == nil || used > 1<<20 {
			t.Errorf("%s: %v; %d bytes of memory", name, err, used)
		}
	}
	if _, err := Parse(Chat, []byte(`{"":0`+strings.Repeat(`,"":0`, MaxMembers-1)+"}")); err != nil {
		t.Error(err)
	}
}

// TestDropIDs checks bodies with the field in every place.
func TestDropIDs(t *testing.T) {
	for body, want := range map[string]string{
		`{"return_token_ids":true}`:                        `{}`,
		`{"return_token_ids":true,"a":1}`:                  `{"a":1}`,
		`{"a":"return_token_ids","return_token_ids":true}`: `{"a":"return_token_ids"}`,
		`{"a":[1,2] , "return_token_ids" : true , "b":{}}`: `{"a":[1,2]  , "b":{}}`,
		`{"a":{"return_token_ids":true}}`:                  `{"a":{"return_token_ids":true}}`,
	} {
		if got := string(extended.DropIDs([]byte(body))); got != want {
			t.Errorf("%s becomes %s, want %s", body, got, want)
		}
	}
}
