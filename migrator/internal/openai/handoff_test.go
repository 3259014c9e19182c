package openai

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// offer is what vLLM 0.32 answers to HandoffBody.
const offer = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"A","remote_request_id":"cmpl-hop-1.h1-0-ae27b03d",` +
	`"remote_host":"127.0.0.1","remote_port":5601,"tp_size":1,"remote_num_tokens":3,"remote_blocks_expiry_time":null,"transfer_mode":"pull"}`

func TestParseHandoff(t *testing.T) {
	good := `{"id":"cmpl-hop","choices":[{"index":0,"text":" heji"}],"kv_transfer_params":` + offer + `,"metrics":null}`
	if got, err := ParseHandoff([]byte(good), 3); err != nil || string(got) != offer {
		t.Errorf("%s, %v", got, err)
	}
	for _, test := range []struct{ old, new, want string }{
		{offer, "null", ErrNoConnector.Error()},
		{`"kv_transfer_params"`, `"other"`, ErrNoConnector.Error()},
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
		if got, err := ParseHandoff([]byte(strings.Replace(good, test.old, test.new, 1)), 3); err == nil || got != nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %s, %v", test.new, got, err)
		}
	}
}

func TestConnectorRequest(t *testing.T) {
	if keeps, fetches := TransferOf([]byte(ConnectorRequest)); !keeps || fetches || checkObject([]byte(ConnectorRequest)) != nil {
		t.Errorf("%s", ConnectorRequest)
	}
	for answer, want := range map[string]string{
		`{"kv_transfer_params":{"kv_connector":"CascadeConnector"}}`: "CascadeConnector",
		`{"kv_transfer_params":{"kv_connector":7}}`:                  "",
		`{"kv_transfer_params":null}`:                                "",
		`{`:                                                          "",
	} {
		if got := ConnectorName([]byte(answer)); got != want {
			t.Errorf("%s: %q", answer, got)
		}
	}
}

func TestHandoffBodies(t *testing.T) {
	ids := []uint32{1, 2, 3}
	for e, want := range map[Endpoint][2]string{
		Completions: {`"prompt":[1,2,3],"kv_transfer_params":` + offer, "logprobs"},
		Chat:        {`"messages":[{"role":"user","content":"."}],"kv_transfer_params":` + strings.TrimSuffix(offer, "}") + `,"prompt_token_ids":[1,2,3]}`, "top_k"},
	} {
		const kept = `"model":"m","cache_salt":"s","priority":3`
		r, _ := Parse(e, []byte(`{`+kept+`,"temperature":0.5,"`+want[1]+`":null,"max_tokens":10,"kv_transfer_params":{"do_remote_decode":true}}`))
		q, ok := r.Resume()
		if !ok {
			t.Fatal("the request cannot be resumed")
		}
		more := `{` + kept + `,"temperature":0.5,"` + want[1] + `":null,` + want[0]
		for name, body := range map[string][2]string{
			"handoff": {string(q.HandoffBody(ids)), `{` + kept + `,"max_tokens":1,"temperature":0,"ignore_eos":true,"prompt":[1,2,3],"kv_transfer_params":` + handoffRequest + `}`},
			"pull":    {string(q.PullBody(ids, []byte(offer))), more + `,"max_tokens":1}`},
			"leg":     {string(q.PulledPromptBody(ids, 2, []byte(offer))), more + `,"max_tokens":8,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`},
		} {
			if !reflect.DeepEqual(object(t, []byte(body[0])), object(t, []byte(body[1]))) {
				t.Errorf("%s:\n got %s\nwant %s", name, body[0], body[1])
			}
			if keeps, fetches := TransferOf([]byte(body[0])); keeps != (name == "handoff") || fetches == keeps {
				t.Errorf("%s: keeps %v, fetches %v", name, keeps, fetches)
			}
		}
		if keeps, fetches := TransferOf(q.PromptBody(ids, 2)); keeps || fetches {
			t.Error("a reprompt transfers KV")
		}
	}
	q := Resume{endpoint: Completions}
	object(t, q.HandoffBody(ids)) // of a request without other members
}

func FuzzParseHandoff(f *testing.F) {
	f.Add([]byte(`{"kv_transfer_params":`+offer+`}`), 3)
	f.Add([]byte(`{"kv_transfer_params":null}`), 0)
	f.Fuzz(func(t *testing.T, answer []byte, n int) {
		params, err := ParseHandoff(answer, n)
		if (err == nil) != (params != nil) || errors.Is(err, errNotChunk) {
			t.Fatalf("%s, %v", params, err)
		}
		if err == nil {
			q := Resume{endpoint: Chat}
			if body := q.PullBody([]uint32{1}, params); checkObject(body) != nil {
				t.Fatalf("%s", body)
			}
		}
	})
}
