package openai

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

const completion = `{"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"abc","logprobs":null,"finish_reason":"stop","stop_reason":7,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-1","usage":{"prompt_tokens":9,"total_tokens":10,"completion_tokens":1,"prompt_tokens_details":null,"completion_tokens_details":null},"kv_transfer_params":null,"metrics":null}`

func answer(t *testing.T, edit Edit, events ...string) *Answer {
	t.Helper()
	var a Answer
	for _, e := range events {
		testkit.NoError(t, a.Add(parse(t, e), edit))
	}
	return &a
}

func TestAnswer(t *testing.T) {
	template := testkit.Must(NewTemplate([]byte(completion)))
	a := answer(t, Edit{}, firstEvent, tokenEvent, lastEvent, usageEvent)
	got, err := a.Body(template, nil, nil)
	want := strings.NewReplacer(`"cmpl-0"`, `"cmpl-1"`, `"created":1`, `"created":17`, `"abc"`, `"odafuwu"`, `"stop",`, `"length",`, `:7`, `:null`,
		`"prompt_tokens":9`, `"prompt_tokens":3`, `:10`, `:6`, `"completion_tokens":1`, `"completion_tokens":3`).Replace(completion)
	if err != nil || string(got) != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
	got, err = answer(t, Edit{Usage: &Usage{Prompt: 5, Output: 6}}, firstEvent, lastEvent, usageEvent).Body(template, []uint32{1, 2}, []uint32{})
	want = strings.NewReplacer(`"odafuwu"`, `"odafuwu"`, `"token_ids":null`, `"token_ids":[1,2]`, `"prompt_token_ids":null`, `"prompt_token_ids":[]`,
		`"prompt_tokens":3`, `"prompt_tokens":5`, `:6`, `:11`, `"completion_tokens":3`, `"completion_tokens":6`).Replace(want)
	if err != nil || string(got) != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
	if _, err := answer(t, Edit{}, firstEvent).Body(template, nil, nil); err == nil {
		t.Error("a stream without an end makes an answer")
	}
}

func TestAnswerOfAChat(t *testing.T) {
	body := `{"id":"c","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x","refusal":null,"tool_calls":[],"reasoning":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":1, "prompt_tokens_details":{"cached_tokens":0}}}`
	template := testkit.Must(NewTemplate([]byte(body)))
	delta := func(d, finish string) string {
		return `data: {"id":"c","created":1,"model":"m","choices":[{"index":0,"delta":` + d + `,"finish_reason":` + finish + "}]}\n\n"
	}
	usage := `data: {"id":"c","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":5}}}` + "\n\n"
	for _, test := range []struct {
		events []string
		want   string
	}{
		{[]string{delta(`{"role":"assistant","content":""}`, "null"), delta(`{"content":"x"}`, `null`), delta(`{"content":"\n\"y\u0000"}`, `"stop"`), usage},
			strings.NewReplacer(`"content":"x"`, `"content":"x\n\"y\u0000"`, `:0}`, `:5}`).Replace(body)},
		{[]string{delta(`{"role":"assistant","content":""}`, "null"), delta(`{"reasoning":"th"}`, `null`), delta(`{"reasoning":"ink"}`, `"length"`), usage},
			strings.NewReplacer(`"content":"x"`, `"content":null`, `"reasoning":null`, `"reasoning":"think"`, `"stop"`, `"length"`, `:0}`, `:5}`).Replace(body)},
		{[]string{delta(`{"role":"assistant","content":""}`, `"stop"`), usage}, strings.NewReplacer(`"content":"x"`, `"content":""`, `:0}`, `:5}`).Replace(body)},
	} {
		got, err := answer(t, Edit{}, test.events...).Body(template, nil, nil)
		if err != nil || string(got) != test.want {
			t.Errorf("%v\n got %s\nwant %s", err, got, test.want)
		}
	}
	var a Answer
	if err := a.Add(parse(t, delta(`{"tool_calls":[{}]}`, "null")), Edit{}); err == nil {
		t.Error("a tool call is assembled")
	}
}

// TestEditIdentityIsShared checks that an answer does not write into the Identity
// of its Edit, which other answers read at the same time.
func TestEditIdentityIsShared(t *testing.T) {
	template := testkit.Must(NewTemplate([]byte(completion)))
	pin := &Identity{ID: []byte(`"cmpl-0"`), Created: []byte(`1`), Model: []byte(`"m"`), Fingerprint: []byte(`"vllm-first"`)}
	other := strings.Replace(lastEvent, "}\n\n", `,"system_fingerprint":"vllm-other"}`+"\n\n", 1)
	if parse(t, other).Fingerprint() == nil {
		t.Fatal(other)
	}
	a := answer(t, Edit{Identity: pin}, firstEvent, other, other, usageEvent)
	if got, err := a.Body(template, nil, nil); err != nil || !strings.Contains(string(got), `"system_fingerprint":"vllm-first"`) {
		t.Errorf("%v %s", err, got)
	}
	if string(pin.Fingerprint) != `"vllm-first"` {
		t.Errorf("the pinned fingerprint is now %s", pin.Fingerprint)
	}
}

func TestNewTemplateRefuses(t *testing.T) {
	for old, field := range map[string]string{`"metrics":null`: `metrics`, `"logprobs":null`: "choices.logprobs", `"kv_transfer_params":null`: "kv_transfer_params"} {
		_, err := NewTemplate([]byte(strings.Replace(completion, old, strings.Replace(old, "null", `{"x":1}`, 1), 1)))
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", old, err)
		}
	}
	for _, body := range []string{``, `{}`, `{"choices":[]}`, `{"choices":[{},{}]}`, `{"error":{"code":400}}`} {
		if _, err := NewTemplate([]byte(body)); err == nil {
			t.Errorf("%q is learnt from", body)
		}
	}
}

func FuzzNewTemplate(f *testing.F) {
	f.Add(completion)
	f.Fuzz(func(t *testing.T, body string) {
		template, err := NewTemplate([]byte(body))
		if err != nil {
			return
		}
		a := answer(t, Edit{}, firstEvent, lastEvent, usageEvent)
		got, err := a.Body(template, nil, nil)
		if err != nil || CheckObject(got) != nil {
			t.Fatalf("%q makes %q, %v", body, got, err)
		}
	})
}
