package openai

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

const (
	firstEvent = `data: {"id":"cmpl-1","object":"text_completion","created":17,"model":"m","choices":[{"index":0,"text":"oda","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[5,300,301],"token_ids":[485]}]}` + "\n\n"
	tokenEvent = `data: {"id":"cmpl-1","object":"text_completion","created":17,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[162]}]}` + "\n\n"
	lastEvent  = `data: {"id":"cmpl-1","object":"text_completion","created":17,"model":"m","choices":[{"index":0,"text":"fuwu","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":[634]}]}` + "\n\n"
	usageEvent = `data: {"id":"cmpl-1","object":"text_completion","created":17,"model":"m","choices":[],"usage":{"prompt_tokens":3,"total_tokens":6,"completion_tokens":3},"system_fingerprint":"vllm-1"}` + "\n\n"
	chatEvent  = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":17,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2]}` + "\n\n"
)

func parse(t *testing.T, raw string) *Chunk {
	t.Helper()
	ev := testkit.Must(NewReader(strings.NewReader(raw)).Next())
	var c Chunk
	if err := c.Parse(ev); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return &c
}

func TestChunk(t *testing.T) {
	c := parse(t, firstEvent)
	ids, err := c.AppendIDs([]uint32{1})
	if err != nil || !slices.Equal(ids, []uint32{1, 485}) || c.Tokens != 1 || !c.HasText || c.Finish {
		t.Errorf("first event: ids %v, %v, %+v", ids, err, c)
	}
	if prompt, err := c.AppendPromptIDs(nil); err != nil || !slices.Equal(prompt, []uint32{5, 300, 301}) || c.PromptTokens() != 3 {
		t.Errorf("first event: prompt %v of %d, %v", prompt, c.PromptTokens(), err)
	}
	if c := parse(t, tokenEvent); c.HasText || c.Tokens != 1 || c.HasPromptIDs() {
		t.Errorf("a token inside a character: %+v", c)
	}
	if c := parse(t, lastEvent); !c.Finish {
		t.Error("the last event does not finish")
	}
	c = parse(t, usageEvent)
	if u, ok := c.Usage(); !ok || u != (Usage{Prompt: 3, Output: 3}) || !c.UsageOnly() || string(c.Fingerprint()) != `"vllm-1"` {
		t.Errorf("usage event: %+v, %t", u, ok)
	}
	if c := parse(t, chatEvent); c.role.absent() || c.Tokens != 0 || c.PromptTokens() != 2 || c.OnlyIDs {
		t.Errorf("chat event: %+v", c)
	}
	hollow := `data: {"id":"c","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[7]}]}` + "\n\n"
	if c := parse(t, hollow); !c.OnlyIDs || c.Tokens != 1 {
		t.Errorf("hollow event: %+v", c)
	}
	if c := parse(t, strings.Replace(hollow, `"finish_reason":null`, `"finish_reason":"stop"`, 1)); c.OnlyIDs {
		t.Error("an event that finishes is not hollow")
	}
	failed := `data: {"error":{"message":"x","code":503}}` + "\n\n"
	if c := parse(t, failed); c.Failure() == nil || FailureStatus(c.Failure()) != 503 {
		t.Error("an error event is not recognised")
	}
	if c := parse(t, ": ping\n\n"); !c.Empty {
		t.Error("a comment is not empty")
	}
	if c := parse(t, "data: [DONE]\n\n"); !c.Done {
		t.Error("[DONE] is not done")
	}
}

func TestChunkRefuses(t *testing.T) {
	for raw, want := range map[string]string{
		"data: {\n\n":                                 "not valid JSON at byte",
		"data: 5\n\n":                                 "not a JSON object",
		"data: {\"object\":\"x\"}\n\n":                "neither choices nor an error",
		"data: {\"choices\":7}\n\n":                   "neither choices nor an error",
		"data: {\"choices\":[{\"token_ids\":7}]}\n\n": "not a list",
		"data: " + strings.Repeat("[", 600) + "\n\n":  "nested deeper",
	} {
		ev := testkit.Must(NewReader(strings.NewReader(raw)).Next())
		if err := new(Chunk).Parse(ev); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", raw, err, want)
		}
	}
	for _, id := range []string{"4294967296", "-1", "1.5", `"7"`, "1e3"} {
		c := parse(t, `data: {"choices":[{"token_ids":[1,`+id+"]}]}\n\n")
		if ids, err := c.AppendIDs(nil); err == nil || ids != nil {
			t.Errorf("id %s: %v, %v", id, ids, err)
		}
	}
}

func TestEdit(t *testing.T) {
	for _, test := range []struct {
		name, raw string
		edit      Edit
		want      string
	}{
		{"nothing", firstEvent, Edit{}, firstEvent},
		{"ids", firstEvent, Edit{HideIDs: true}, strings.NewReplacer("[5,300,301]", "null", "[485]", "null").Replace(firstEvent)},
		{"ids of a chat", chatEvent, Edit{HideIDs: true}, strings.Replace(chatEvent, "[1,2]", "null", 1)},
		{"fingerprint", lastEvent, Edit{Fingerprint: []byte(`"f"`)}, strings.Replace(lastEvent, "]}]}", `]}],"system_fingerprint":"f"}`, 1)},
		{"fingerprint that is there", usageEvent, Edit{Fingerprint: []byte(`"f"`)}, usageEvent},
		{"identity", tokenEvent, Edit{Identity: &Identity{ID: []byte(`"x"`), Created: []byte("9"), Model: []byte(`"n"`)}},
			strings.NewReplacer(`"cmpl-1"`, `"x"`, "17", "9", `"model":"m"`, `"model":"n"`).Replace(tokenEvent)},
		{"pinned fingerprint", usageEvent, Edit{Identity: &Identity{Fingerprint: []byte(`"f"`)}, Fingerprint: []byte(`"g"`)}, strings.Replace(usageEvent, "vllm-1", "f", 1)},
		{"prompt", firstEvent, Edit{HidePromptIDs: true}, strings.Replace(firstEvent, "[5,300,301]", "null", 1)},
		{"totals", usageEvent, Edit{Usage: &Usage{Prompt: 10, Output: 20}},
			strings.NewReplacer(`"prompt_tokens":3`, `"prompt_tokens":10`, `"total_tokens":6`, `"total_tokens":30`, `"completion_tokens":3`, `"completion_tokens":20`).Replace(usageEvent)},
		{"CRLF", strings.ReplaceAll(tokenEvent, "\n", "\r\n"), Edit{HideIDs: true},
			strings.ReplaceAll(strings.Replace(tokenEvent, "[162]", "null", 1), "\n", "\r\n")},
		{"two lines", "data: {\"choices\":[{\"token_ids\":\ndata: [1]}]}\n\n", Edit{HideIDs: true}, "data: {\"choices\":[{\"token_ids\": null}]}\n\n"},
	} {
		if got := string(parse(t, test.raw).Append(nil, test.edit)); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
	}
}

func BenchmarkToken(b *testing.B) {
	r := NewReader(&loop{text: []byte(lastEvent)})
	var c Chunk
	var ids []uint32
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		ev := testkit.Must(r.Next())
		testkit.NoError(b, c.Parse(ev))
		ids, _ = c.AppendIDs(ids[:0])
		out = c.Append(out[:0], Edit{HideIDs: true})
	}
}

// TestWithText replaces the text of events of both APIs, and nothing else of them.
func TestWithText(t *testing.T) {
	const text = "a\"\\\n\u2028é<"
	for _, test := range [][2]string{
		{`{"choices":[{"index":0,"text":"x","token_ids":[7]}]}`, ""},
		{`{"choices":[{"index":0,"delta":{"content":"x\n"},"token_ids":[7,8]}]}`, ""},
		{`{"choices":[{"index":0,"delta":{"reasoning":"x","content":""},"finish_reason":"length","token_ids":[7]}]}`, ""},
		{`{"choices":[{"index":0,"delta":{"reasoning":"x","content":"y"},"token_ids":[7]}]}`, "both"},
		{`{"choices":[{"index":0,"text":"","token_ids":[7]}]}`, "no text"},
	} {
		c := parse(t, "data: "+test[0]+"\n\n")
		got, err := c.WithText(text)
		if test[1] != "" {
			if err == nil || !strings.Contains(err.Error(), test[1]) {
				t.Errorf("%s: %v", test[0], err)
			}
			continue
		}
		testkit.NoError(t, err)
		at := "choices.0.text"
		for _, path := range []string{"choices.0.delta.reasoning", "choices.0.delta.content"} {
			if gjson.Get(test[0], path).Str != "" {
				at = path
			}
		}
		if found := gjson.GetBytes(got.event.Data, at).Str; found != text || got.Text() != text || c.Text() != gjson.Get(test[0], at).Str {
			t.Errorf("%s: %q", test[0], found)
		}
		again, err := got.WithText(gjson.Get(test[0], at).Str)
		if err != nil || string(again.Raw()) != string(c.Raw()) || bytes.Contains(got.Raw(), []byte("u003c")) || got.Finish != c.Finish || got.Tokens != c.Tokens {
			t.Errorf("%s: back again: %v %s", test[0], err, again.Raw())
		}
	}
}
