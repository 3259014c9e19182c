package vllm

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

var d Dialect

// offer is what vLLM 0.32 answers to Keep.
const offer = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"A","remote_request_id":"cmpl-hop-1.h1-0-ae27b03d",` +
	`"remote_host":"127.0.0.1","remote_port":5601,"tp_size":1,"remote_num_tokens":3,"remote_blocks_expiry_time":null,"transfer_mode":"pull"}`

func TestKept(t *testing.T) {
	good := `{"id":"cmpl-hop","choices":[{"index":0,"text":" heji"}],"kv_transfer_params":` + offer + `,"metrics":null}`
	if got, name, err := d.Kept([]byte(good), 3); err != nil || string(got) != offer || name != "" {
		t.Errorf("%s, %v", got, err)
	}
	for _, test := range []struct{ old, new, want string }{
		{offer, "null", engineinfo.ErrNoConnector.Error()},
		{`"kv_transfer_params"`, `"other"`, engineinfo.ErrNoConnector.Error()},
		{offer, "[]", "do not offer"},
		{`"do_remote_prefill":true`, `"do_remote_prefill":false`, "do not offer"},
		{`"do_remote_prefill":true`, `"do_remote_prefill":"true"`, "do not offer"},
		{`"remote_num_tokens":3`, `"remote_num_tokens":2`, `"2" token ids, not the 3`},
		{`"remote_num_tokens":3`, `"remote_num_tokens":4`, `"4" token ids, not the 3`},
		{`"remote_num_tokens":3`, `"remote_num_tokens":"3"`, "token ids"},
		{`"remote_num_tokens":3`, `"x":3`, "token ids"},
		{`"tp_size":1`, `"prompt_token_ids":[1]`, "of their own"},
		{`{"id"`, `{"id`, "the answer is"},
	} {
		if got, _, err := d.Kept([]byte(strings.Replace(good, test.old, test.new, 1)), 3); err == nil || got != nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %s, %v", test.new, got, err)
		}
	}
}

func TestHandoffBodies(t *testing.T) {
	ids := []uint32{1, 2, 3}
	for e, want := range map[openai.Endpoint][2]string{
		openai.Completions: {`"prompt":[1,2,3],"kv_transfer_params":` + offer, "logprobs"},
		openai.Chat:        {`"messages":[{"role":"user","content":"."}],"kv_transfer_params":` + strings.TrimSuffix(offer, "}") + `,"prompt_token_ids":[1,2,3]}`, "top_k"},
	} {
		const kept = `"model":"m","cache_salt":"s","priority":3`
		r, _ := fields.Parse(e, []byte(`{`+kept+`,"temperature":0.5,"`+want[1]+`":null,"max_tokens":10,"kv_transfer_params":{"do_remote_decode":true}}`))
		q, ok := r.Resume()
		if !ok {
			t.Fatal("the request cannot be resumed")
		}
		more := `{` + kept + `,"temperature":0.5,"` + want[1] + `":null,` + want[0]
		for name, body := range map[string][2]string{
			"handoff": {string(d.Keep(&q, ids)), `{` + kept + `,"max_tokens":1,"temperature":0,"ignore_eos":true,"prompt":[1,2,3],"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}`},
			"pull":    {string(d.Continue(&q, dialect.Continuation{IDs: ids, Warm: true, Fetch: []byte(offer)})), more + `,"max_tokens":1}`},
			"leg":     {string(d.Continue(&q, dialect.Continuation{IDs: ids, Output: 2, Fetch: []byte(offer)})), more + `,"max_tokens":8,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`},
		} {
			if !reflect.DeepEqual(object(t, []byte(body[0])), object(t, []byte(body[1]))) {
				t.Errorf("%s:\n got %s\nwant %s", name, body[0], body[1])
			}
			if keeps, fetches := d.Transfers([]byte(body[0])); keeps != (name == "handoff") || fetches == keeps {
				t.Errorf("%s: keeps %v, fetches %v", name, keeps, fetches)
			}
		}
		if keeps, fetches := d.Transfers(d.Continue(&q, dialect.Continuation{IDs: ids, Output: 2})); keeps || fetches {
			t.Error("a reprompt transfers KV")
		}
	}
	q := openai.Resume{Endpoint: openai.Completions}
	object(t, d.Keep(&q, ids)) // of a request without other members
}

func FuzzKept(f *testing.F) {
	f.Add([]byte(`{"kv_transfer_params":`+offer+`}`), 3)
	f.Add([]byte(`{"kv_transfer_params":null}`), 0)
	f.Fuzz(func(t *testing.T, answer []byte, n int) {
		params, _, err := d.Kept(answer, n)
		if (err == nil) != (params != nil) {
			t.Fatalf("%s, %v", params, err)
		}
		if err == nil {
			q := openai.Resume{Endpoint: openai.Chat}
			if body := d.Continue(&q, dialect.Continuation{IDs: []uint32{1}, Warm: true, Fetch: params}); openai.CheckObject(body) != nil {
				t.Fatalf("%s", body)
			}
		}
	})
}

// object parses a JSON object without knowing its fields.
func object(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return m
}

func TestContinue(t *testing.T) {
	const sampling = `"model":"m","temperature":0.50,"ignore_eos":true,"stop_token_ids":[7]`
	for _, test := range []struct {
		name     string
		endpoint openai.Endpoint
		body     string
		output   int
		want     string // of Continue; the ids are 1, 2, 3
	}{
		{"completions", openai.Completions, `{` + sampling + `,"prompt":"long","max_tokens":10,"stream":true,"stream_options":{"include_usage":false},"request_id":"x"}`, 4,
			`{` + sampling + `,"prompt":[1,2,3],"max_tokens":6}`},
		{"the API's default", openai.Completions, `{"prompt":[5],"max_tokens":null}`, 4, `{"prompt":[1,2,3],"max_tokens":12}`},
		{"chat has none", openai.Chat, `{"messages":[{"role":"user","content":"x"}],"return_token_ids":false}`, 4,
			`{"messages":[{"role":"user","content":"."}],"kv_transfer_params":{"prompt_token_ids":[1,2,3]}}`},
		{"chat", openai.Chat, `{"max_completion_tokens":9,"messages":[],"max_tokens":3,"kv_transfer_params":{"x":1}}`, 1,
			`{"messages":[{"role":"user","content":"."}],"kv_transfer_params":{"prompt_token_ids":[1,2,3]},"max_tokens":8}`},
		{"the last one counts", openai.Completions, `{"prompt":"x","max_tokens":3,"max_tokens":30}`, 2, `{"prompt":[1,2,3],"max_tokens":28}`},
		{"min_tokens left", openai.Completions, `{"prompt":"x","max_tokens":30,"min_tokens":9}`, 2, `{"prompt":[1,2,3],"max_tokens":28,"min_tokens":7}`},
		{"min_tokens reached", openai.Completions, `{"prompt":"x","max_tokens":30,"min_tokens":9}`, 9, `{"prompt":[1,2,3],"max_tokens":21}`},
		{"min_tokens above the default", openai.Completions, `{"prompt":"x","min_tokens":20}`, 19, `{"prompt":[1,2,3],"max_tokens":1,"min_tokens":1}`},
	} {
		r, err := fields.Parse(test.endpoint, []byte(test.body))
		testkit.NoError(t, err)
		q, ok := r.Resume()
		if !ok {
			t.Errorf("%s: cannot be resumed", test.name)
			continue
		}
		want := object(t, []byte(test.want))
		for name, v := range object(t, []byte(`{"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`)) {
			want[name] = v
		}
		if got := d.Continue(&q, dialect.Continuation{IDs: []uint32{1, 2, 3}, Output: test.output}); !reflect.DeepEqual(object(t, got), want) {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
		// Without ids it is the body of the same leg with an empty prompt.
		delete(want, "kv_transfer_params")
		delete(want, "messages")
		delete(want, "prompt")
		want[map[openai.Endpoint]string{openai.Completions: "prompt", openai.Chat: "messages"}[test.endpoint]] = []any{}
		if got := d.Continue(&q, dialect.Continuation{Output: test.output}); !reflect.DeepEqual(object(t, got), want) {
			t.Errorf("%s: adopting %s", test.name, got)
		}
		if got := object(t, d.Continue(&q, dialect.Continuation{IDs: []uint32{1}, Warm: true})); got["max_tokens"] != 1.0 || got["stream"] != nil || got["min_tokens"] != nil {
			t.Errorf("%s: warming %v", test.name, got)
		}
	}
}

func TestContinueOptions(t *testing.T) {
	for body, want := range map[string]string{
		`{"prompt":"x"}`: `{"include_usage":true}`,
		`{"prompt":"x","stream_options":{"include_usage":true,"continuous_usage_stats":true}}`:         `{"include_usage":true,"continuous_usage_stats":true}`,
		`{"prompt":"x","stream_options":{"include_usage":false,"continuous_usage_stats":true,"x":[]}}`: `{"include_usage":true,"x":[]}`,
	} {
		r, _ := fields.Parse(openai.Completions, []byte(body))
		q, ok := r.Resume()
		if !ok || !strings.Contains(string(d.Continue(&q, dialect.Continuation{IDs: []uint32{1}})), `"stream_options":`+want+`,`) || strings.Contains(string(d.Continue(&q, dialect.Continuation{IDs: []uint32{1}, Warm: true})), "stream_options") {
			t.Errorf("%s: %v %s", body, ok, d.Continue(&q, dialect.Continuation{IDs: []uint32{1}}))
		}
	}
}

// FuzzContinue checks that the bodies of a request's later legs are JSON objects that name no other
// engine's memory, whatever the client sent.
func FuzzContinue(f *testing.F) {
	f.Add([]byte(`{"model":"m","prompt":"x","max_tokens":5,"min_tokens":2,"stream_options":{"include_usage":true}}`), 3)
	f.Add([]byte(`{"messages":[],"vllm_xargs":{"kv_transfer_params":1},"kv_transfer_params":{},"stop_token_ids":[1]}`), 0)
	f.Fuzz(func(t *testing.T, body []byte, output int) {
		for _, e := range []openai.Endpoint{openai.Completions, openai.Chat} {
			r, err := fields.Parse(e, body)
			if err != nil {
				continue
			}
			q, ok := r.Resume()
			if !ok {
				continue
			}
			output = min(max(output, 0), 1<<20)
			ids := []uint32{1, 2}
			for i, leg := range [][]byte{d.Continue(&q, dialect.Continuation{IDs: ids, Output: output}), d.Continue(&q, dialect.Continuation{Output: output}), d.Continue(&q, dialect.Continuation{IDs: ids, Warm: true})} {
				again, err := fields.Parse(e, leg)
				if err != nil {
					t.Fatalf("%v in %s", err, leg)
				}
				if (i != 2) != again.Stream || (len(again.PlainBody()) != len(leg)) != (e == openai.Chat && i != 1) || again.MaxOutput > 0 && i != 2 && int(again.MaxOutput) != q.Remaining(output) {
					t.Fatalf("leg %d of %s: %s", i, body, leg)
				}
			}
			if _, err := d.Adopt(d.Continue(&q, dialect.Continuation{Output: output}), []byte(`{"cascade_reservation":"x"}`), 1); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestAdopt(t *testing.T) {
	got, err := d.Adopt([]byte(`{"prompt":[],"n":1} `), []byte(`{"cascade_reservation":"r0/1"}`), 5)
	if err != nil || string(got) != `{"prompt":[],"n":1,"kv_transfer_params":{"cascade_reservation":"r0/1","cascade_prompt":5}}` {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range [][2]string{{`{}`, `{"a":1}`}, {`{"a":1}`, `{}`}, {`[]`, `{"a":1}`}, {`{"a":1}`, `7`}, {`{"a":1}`, `{`}, {`{"a":1`, `{"a":1}`}} {
		if got, err := d.Adopt([]byte(bad[0]), []byte(bad[1]), 1); err == nil {
			t.Errorf("%v: %s", bad, got)
		}
	}
}

// TestTokenize checks which requests /tokenize answers as the endpoint does, and what it is asked.
func TestTokenize(t *testing.T) {
	for _, test := range []struct {
		endpoint   openai.Endpoint
		body, want string
	}{
		{openai.Completions, `{"model":"m","prompt":"x","max_tokens":3}`, `{"model":"m","prompt":"x"}`},
		{openai.Completions, `{"add_special_tokens": false, "prompt":"x","messages":[]}`, `{"add_special_tokens": false,"prompt":"x"}`},
		{openai.Completions, `{"prompt":[1]}`, ""},
		{openai.Completions, `{"prompt":["x"]}`, ""},
		{openai.Completions, `{"prompt":"x","truncate_prompt_tokens":5}`, ""},
		{openai.Completions, `{"prompt":"x","truncate_prompt_tokens":null,"suffix":null}`, `{"prompt":"x"}`},
		{openai.Completions, `{"model":"m"}`, ""},
		{openai.Completions, `{"prompt":null}`, ""},
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{}],"chat_template_kwargs":{"a":1},"stream":true}`,
			`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{}],"chat_template_kwargs":{"a":1}}`},
		{openai.Chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, ""},
		{openai.Chat, `{"messages":[{"role":"user","content":"x"}],"documents":[{}]}`, ""},
		{openai.Chat, `{"messages":[{"role":"user","content":"x"}],"tool_choice":"none"}`, ""},
		{openai.Chat, `{"messages":{}}`, ""},

		// A client's template is never run by /tokenize, however it is spelled.
		{openai.Chat, `{"messages":[{"role":"user","content":"x"}],"chat_template":"{{ messages }}"}`, ""},
		{openai.Chat, `{"messages":[{"role":"user","content":"x"}],"chat_templ\u0061te":"{{ messages }}"}`, ""},
		{openai.Chat, `{"chat_template":null,"messages":[{"role":"user","content":"x"}],"chat_template":"{{ messages }}"}`, ""},
		{openai.Chat, `{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":1,"chat_template":"{{ messages }}"}}`, ""},
		{openai.Chat, `{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"tokenize":true}}`, ""},
		{openai.Chat, `{"messages":[{"role":"user","content":"x"}],"chat_template":null}`, `{"messages":[{"role":"user","content":"x"}]}`},
		{openai.Completions, `{"prompt":"x","chat_template_kwargs":{"tokenize":true}}`, `{"prompt":"x"}`},
		{openai.Chat, `{"messages":[{"role":"user","content":"x"}],"return_token_strs":true,"mm_x":1}`, `{"messages":[{"role":"user","content":"x"}]}`},
	} {
		r, err := fields.Parse(test.endpoint, []byte(test.body))
		if got := d.Tokenize(&r).Body; err != nil || string(got) != test.want {
			t.Errorf("%s\n got %s, %v\nwant %s", test.body, got, err, test.want)
		}
	}
}
