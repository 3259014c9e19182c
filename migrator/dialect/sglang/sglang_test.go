package sglang

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// TestContinueChat checks which chats go to /generate, and how: only where it samples as the chat would.
func TestContinueChat(t *testing.T) {
	const chat = `"messages":[{"role":"user","content":"x"}]`
	openaiDefaults := Dialect{}.Configured([]byte(`{"sampling_defaults":"openai","reasoning_parser":null}`))
	modelDefaults := Dialect{}.Configured([]byte(`{"sampling_defaults":"model","chat_template":"/models/m.jinja"}`))
	for _, test := range []struct {
		dialect dialect.Dialect
		more    string
		want    string // after the ids
	}{
		{modelDefaults, `,"temperature":0,"max_tokens":9,"repetition_penalty":1,"user":"u"`, `"stream":true,"sampling_params":{"max_new_tokens":7,"min_new_tokens":0,"temperature":0,"repetition_penalty":1}}`},
		{openaiDefaults, `,"temperature":0,"model":"m","priority":2`, `"stream":true,"sampling_params":{"max_new_tokens":null,"min_new_tokens":0,"temperature":0},"model":"m","priority":2}`},
		{modelDefaults, `,"temperature":0.5,"repetition_penalty":1`, ""}, // the model's top_p would be missing
		{modelDefaults, `,"temperature":0`, ""},                          // … its penalty
		{modelDefaults, ``, ""},
		{openaiDefaults, `,"temperature":0.5,"min_tokens":5`, `"stream":true,"sampling_params":{"max_new_tokens":null,"min_new_tokens":3,"temperature":0.5}}`},
		{openaiDefaults, `,"chat_template_kwargs":{"a":1}`, `"stream":true,"sampling_params":{"max_new_tokens":null,"min_new_tokens":0}}`}, // in the ids
		{openaiDefaults, `,"logit_bias":{"5":1}`, ""},
		{Dialect{}.Configured([]byte(`{"sampling_defaults":"openai","reasoning_parser":"qwen3"}`)), ``, ""},
		{Dialect{}.Configured([]byte(`{"sampling_defaults":"openai","incremental_streaming_output":true}`)), ``, ""},
		{Dialect{}.Configured([]byte(`{"sampling_defaults":"openai","chat_template":"vicuna_v1.1"}`)), ``, ""},
		{Dialect{}.Configured([]byte(`<html>`)), `,"temperature":0,"repetition_penalty":1`, ""},
		{Dialect{}, `,"temperature":0,"repetition_penalty":1`, ""}, // it is not known how the engine was started
	} {
		r := testkit.Must(fields.Parse(openai.Chat, []byte(`{`+chat+test.more+`}`)))
		q, ok := r.Resume()
		want := ""
		if test.want != "" {
			want = `{"rid":null,"input_ids":[1,2,3],` + test.want
		}
		if got := string(test.dialect.Continue(&q, dialect.Continuation{IDs: []uint32{1, 2, 3}, Output: 2})); !ok || got != want {
			t.Errorf("%s:\n got %s\nwant %s", test.more, got, want)
		}
	}
}

// TestClientsCannotGenerate checks that no client's body goes to /generate, whatever it begins with.
func TestClientsCannotGenerate(t *testing.T) {
	for _, body := range []string{`{"rid":null,"input_ids":[1]}`, `{"input_ids":[1]}`, `{"rid":null,"rid":null,"input_ids":[1],"messages":[]}`, `{"r\u0069d":null,"input_ids":[1]}`} {
		for _, stream := range []string{`}`, `,"stream":true}`} {
			r := testkit.Must(fields.Parse(openai.Chat, []byte(strings.TrimSuffix(body, "}")+stream)))
			for _, b := range [][]byte{r.PlainBody(), r.StreamBody()} {
				if path, _ := (Dialect{}).Open(openai.Chat, b); path != openai.Chat.Path() {
					t.Errorf("%s goes to %s as %s", body, path, b)
				}
			}
		}
	}
}

// TestTokenizeChat checks that the request for a chat's ids has all that its prompt and its cache depend on.
func TestTokenizeChat(t *testing.T) {
	r := testkit.Must(fields.Parse(openai.Chat, []byte(`{"messages":[],"stream":true,"tools":[{}],"cache_salt":"s","max_tokens":9,"rid":"x"}`)))
	if got := string(Dialect{}.Tokenize(&r).Body); got != `{"max_tokens":1,"temperature":0,"return_prompt_token_ids":true,"messages":[],"tools":[{}],"cache_salt":"s"}` {
		t.Error(got)
	}
	for _, refused := range []string{`"max_tokens":-3`, `"max_completion_tokens":0`, `"temperature":-1`, `"max_tokens":"x"`} {
		r, err := fields.Parse(openai.Chat, []byte(`{"messages":[],`+refused+`}`))
		if err == nil && (Dialect{}).Tokenize(&r).Body != nil {
			t.Errorf("%s: the engine would refuse the chat, and is asked for its ids", refused)
		}
	}
}

// TestChatEvents checks what becomes of the events of /generate.
func TestChatEvents(t *testing.T) {
	event := func(text, ids, finish string) string {
		return `data: {"text":"` + text + `","output_ids":` + ids + `,"meta_info":{"id":"g","finish_reason":` + finish + `,"prompt_tokens":2,"completion_tokens":3,"cached_tokens":1}}` + "\n\n"
	}
	events := event("a�", "[7]", "null") + event(`aé<\"`, "[7,8]", "null") + event(`aé<\"`, "[7,8,9]", `{"type":"stop","matched":9}`) +
		"data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n"
	requireChat(t, events)
	requireChat(t, strings.ReplaceAll(strings.ReplaceAll(events, `"output_ids":[7,`, `"output_ids": [7, `), `"text":`, `"text": `)) // another layout
	requireChat(t, strings.ReplaceAll(events, "\uFFFD", `\ufffd\ufffd`))
}

// requireChat checks the chat that becomes of TestChatEvents' events.
func requireChat(t *testing.T, events string) {
	t.Helper()
	out := string(testkit.Must(io.ReadAll(newChatEvents(strings.NewReader(events), []byte(`{"input_ids":[1, 2],"model":"m"}`)))))
	var texts, rest []string
	for line := range strings.Lines(out) {
		if _, after, ok := strings.Cut(line, `"choices":[`); ok {
			texts = append(texts, strings.TrimSpace(after))
		} else if line != "\n" {
			rest = append(rest, strings.TrimSpace(line))
		}
	}
	want := []string{
		`{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null},"logprobs":null,"finish_reason":null,"matched_stop":null,"prompt_token_ids":[1, 2]}]}`,
		`{"index":0,"delta":{"content":"a","reasoning_content":null},"logprobs":null,"finish_reason":null,"matched_stop":null,"token_ids":[7]}]}`,
		`{"index":0,"delta":{"content":"é<\"","reasoning_content":null},"logprobs":null,"finish_reason":null,"matched_stop":null,"token_ids":[8]}]}`,
		`{"index":0,"delta":{"content":"","reasoning_content":null},"logprobs":null,"finish_reason":null,"matched_stop":null,"token_ids":[9]}]}`,
		`{"index":0,"delta":{"reasoning_content":null},"logprobs":null,"finish_reason":"stop","matched_stop":9}]}`,
		`],"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1},"reasoning_tokens":0,"completion_tokens_details":null}}`,
	}
	if strings.Join(texts, "\n") != strings.Join(want, "\n") || strings.Join(rest, " ") != `data: {"error":{"message":"x"}} data: [DONE]` {
		t.Errorf("%s", out)
	}
}

// TestLongChat checks that the work for an event depends on its addition, not on the length of the answer so far.
func TestLongChat(t *testing.T) {
	r := newChatEvents(nil, []byte(`{"input_ids":[1]}`)).(*chatEvents)
	text, ids := "", ""
	for i := range 1000 {
		text, ids = text+fmt.Sprintf(` w%d\"é`, i), strings.TrimPrefix(ids+fmt.Sprint(",", i), ",")
		event := []byte(fmt.Sprintf(`{"text":"%s","output_ids":[%s],"meta_info":{"id":"g","finish_reason":null}}`, text, ids))
		if data, short := r.shorten(event); !short || len(data) > 100 {
			t.Fatalf("of event %d, with %d bytes, %d are read: %s", i, len(event), len(data), data)
		}
		r.translate(openai.Event{Data: event})
	}
	if got := strings.Count(string(r.out), `"token_ids":[`); got != 1000 {
		t.Errorf("%d events have ids", got)
	}
}

// TestAbortedChat checks that an answer which the engine aborts because it failed is no whole one. One that was aborted
// on request ends, as a chat does.
func TestAbortedChat(t *testing.T) {
	for finish, want := range map[string]string{
		`{"type":"abort","message":"out of memory","status_code":500}`: `data: {"error":{"type":"abort","message":"out of memory","status_code":500}}` + "\n\n",
		`{"type":"abort","message":"aborted","status_code":null}`:      `"finish_reason":"abort"`,
	} {
		event := `data: {"text":"","output_ids":[],"meta_info":{"id":"g","finish_reason":` + finish + `}}` + "\n\n"
		out := string(testkit.Must(io.ReadAll(newChatEvents(strings.NewReader(event), []byte(`{"input_ids":[1]}`)))))
		if !strings.Contains(out, want) || strings.Contains(want, "error") && out != want {
			t.Errorf("%s becomes %s", finish, out)
		}
	}
}

// FuzzChatEvents checks that whatever an engine sends becomes events.
func FuzzChatEvents(f *testing.F) {
	f.Add(`data: {"text":"a","output_ids":[7],"meta_info":{"id":"g","finish_reason":null}}` + "\n\n")
	f.Add(`data: {"text":7,"output_ids":[[]],"meta_info":{"finish_reason":{"type":7}}}` + "\n\n")
	f.Fuzz(func(t *testing.T, events string) {
		out, err := io.ReadAll(newChatEvents(strings.NewReader(events), []byte(`{"input_ids":[1]}`)))
		if err == nil && len(out) > 4*len(events)+4096*(1+strings.Count(events, "data")) {
			t.Errorf("%d bytes become %d", len(events), len(out))
		}
	})
}
