// Package dialecttest_test checks the dialects of all engines against fakes that answer as the engines document it.
package dialecttest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/dialect/sglang"
	"github.com/cascadeinfer/cascade/migrator/dialect/vllm"
)

// kind is an engine that the suite runs with.
type kind struct {
	dialect dialect.Dialect
	// generate answers a generating request. It calls run for the tokens.
	generate func(e *engine, w http.ResponseWriter, path string, q map[string]any)
	info     string // the answer of VersionPath
	metrics  string // of an engine with 7 of 100 tokens in use, 3 running requests and 2 waiting ones
}

var kinds = []kind{
	{vllm.Dialect{}, generateVLLM, `{"version":"1.2.3"}`, "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.07\n" +
		"vllm:cache_config_info{block_size=\"10\",num_gpu_blocks=\"10\"} 1\nvllm:generation_tokens_total %d\n"},
	{sglang.Dialect{}, generateSGLang, `{"version":"1.2.3","sampling_defaults":"openai","reasoning_parser":null}`, "sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\n" +
		"sglang:token_usage 0.07\nsglang:max_total_num_tokens 100\nsglang:generation_tokens_total %d\n"},
	{third{}, generateThird, `{"version":"1.2.3"}`, `{"active":3,"queued":2,"kv":{"used":7,"size":100},"steps":%d}`},
}

// engine is a fake inference engine. The next token is a function of all tokens before it, so that a
// continuation from wrong ids is detected. It pauses before token 4 of a long answer until it may go on.
type engine struct {
	*httptest.Server
	kind kind
	hold chan struct{} // nil: it does not pause
	mute atomic.Int64  // how often it does not say what it is
	sent atomic.Int64  // tokens
	last atomic.Pointer[map[string]any]
	path atomic.Pointer[string]
}

func newEngine(t testing.TB, k kind) *engine {
	e := &engine{kind: k}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := e.kind.dialect.Capabilities()
	q := make(map[string]any)
	if body, _ := io.ReadAll(r.Body); len(body) > 0 {
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	switch r.URL.Path {
	case "/health", c.HealthPath:
	case "/v1/models":
		if e.mute.Add(-1) >= 0 {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"data":[{"id":"m","max_model_len":4096,"owned_by":%q}]}`, c.Name)
	case c.VersionPath:
		io.WriteString(w, e.kind.info)
	case c.LoadPath:
		fmt.Fprintf(w, e.kind.metrics, e.sent.Load())
	case "/tokenize":
		text, _ := q["prompt"].(string)
		if q["messages"] != nil {
			text = chatText(q)
		}
		fmt.Fprintf(w, `{"tokens":%s}`, list(tokensOf(text)))
	case "/detokenize":
		text := ""
		for _, id := range idsOf(q["tokens"]) {
			text += textOf(id)
		}
		json.NewEncoder(w).Encode(map[string]string{c.Text: text})
	default:
		if path := r.URL.Path; q["stream"] == true {
			e.last.Store(&q)
			e.path.Store(&path)
		}
		e.kind.generate(e, w, r.URL.Path, q)
	}
}

// run generates up to limit tokens after ids, and calls send after each with those so far.
func (e *engine) run(w http.ResponseWriter, ids []uint32, limit int, send func(all []uint32)) {
	w.Header().Set("Content-Type", "text/event-stream")
	var out []uint32
	for range limit {
		if e.hold != nil && len(out) == 4 {
			<-e.hold
		}
		out = append(out, next(append(slices.Clone(ids), out...)))
		e.sent.Add(1)
		send(out)
		w.(http.Flusher).Flush()
	}
}

func next(ids []uint32) uint32 {
	h := uint32(2166136261)
	for _, id := range ids {
		h = (h ^ id) * 16777619
	}
	return h>>8%997 + 1
}

func textOf(id uint32) string { return fmt.Sprintf(" w%d\"é<", id) }

func textsOf(ids []uint32) (s string) {
	for _, id := range ids {
		s += textOf(id)
	}
	return s
}

// tokensOf returns one token for each byte of a prompt.
func tokensOf(text string) (ids []uint32) {
	for _, b := range []byte(text) {
		ids = append(ids, uint32(b))
	}
	return ids
}

// chatText renders a chat of one message.
func chatText(q map[string]any) string {
	return "user: " + q["messages"].([]any)[0].(map[string]any)["content"].(string)
}

// idsOf returns the numbers of a list, nil for anything else.
func idsOf(v any) (ids []uint32) {
	all, _ := v.([]any)
	for _, n := range all {
		var id uint32
		fmt.Sscan(n.(json.Number).String(), &id)
		ids = append(ids, id)
	}
	return ids
}

func numberOf(v any, or int) int {
	if n, ok := v.(json.Number); ok {
		fmt.Sscan(n.String(), &or)
	}
	return or
}

func list(ids []uint32) string {
	b, _ := json.Marshal(append([]uint32{}, ids...))
	return string(b)
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// promptOf returns the ids of a prompt: given, a text or a chat.
func promptOf(q map[string]any, given any) []uint32 {
	if ids := idsOf(given); ids != nil {
		return ids
	}
	if ids := idsOf(q["prompt"]); ids != nil {
		return ids
	}
	if text, ok := q["prompt"].(string); ok {
		return tokensOf(text)
	}
	return tokensOf(chatText(q))
}

// sendAPI answers at one of the two endpoints of the API, with the ids in each event if ids.
func (e *engine) sendAPI(w http.ResponseWriter, path string, prompt []uint32, limit int, stream, ids bool) {
	head := `{"id":"cmpl-1","object":"x","created":1,"model":"m","choices":[`
	content := func(text string) string {
		if strings.Contains(path, "chat") {
			return `"delta":{"content":` + quote(text) + `}`
		}
		return `"text":` + quote(text)
	}
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, len(prompt), limit, len(prompt)+limit)
	if !stream {
		fmt.Fprintf(w, `{"id":"c","object":"x","created":1,"model":"m","choices":[{"index":0,"text":"x","finish_reason":"length","prompt_token_ids":%s}],%s,"kv_transfer_params":{"do_remote_prefill":true,"remote_num_tokens":%d,"kv_connector":"x"}}`, list(prompt), usage, len(prompt))
		return
	}
	e.run(w, prompt, limit, func(all []uint32) {
		id, finish, more := all[len(all)-1], "null", ""
		if len(all) == limit {
			finish = `"length"`
		}
		if ids {
			more = `,"token_ids":` + list([]uint32{id})
			if len(all) == 1 {
				more += `,"prompt_token_ids":` + list(prompt)
			}
		}
		fmt.Fprintf(w, "data: %s{\"index\":0,%s,\"finish_reason\":%s%s}]}\n\n", head, content(textOf(id)), finish, more)
	})
	fmt.Fprintf(w, "data: %s],%s}\n\ndata: [DONE]\n\n", head, usage)
}

func generateVLLM(e *engine, w http.ResponseWriter, path string, q map[string]any) {
	kv, _ := q["kv_transfer_params"].(map[string]any)
	limit := numberOf(q["max_tokens"], 16)
	e.sendAPI(w, path, promptOf(q, kv["prompt_token_ids"]), limit, q["stream"] == true, q["return_token_ids"] == true)
}

// vocabulary is how many token ids the model has.
const vocabulary = 1000

// generateSGLang answers like SGLang 0.5.23: a bias of a token is refused with the vocabulary, streamed chats have no
// token ids, and /generate sends the whole answer with each event.
func generateSGLang(e *engine, w http.ResponseWriter, path string, q map[string]any) {
	ids := q["return_token_ids"] == true
	if bias, ok := q["logit_bias"].(map[string]any); ok {
		for id := range bias {
			http.Error(w, fmt.Sprintf(`{"object":"error","message":"logit_bias must has keys in [0, %d], got %s.","type":"BadRequestError","code":400}`, vocabulary-1, id), http.StatusBadRequest)
		}
		return
	}
	if path != "/generate" {
		if ids && q["stream"] == true && strings.Contains(path, "chat") {
			http.Error(w, `{"message":"return_token_ids is not supported with streaming"}`, http.StatusBadRequest)
			return
		}
		e.sendAPI(w, path, promptOf(q, nil), numberOf(q["max_tokens"], 16), q["stream"] == true, ids)
		return
	}
	params := q["sampling_params"].(map[string]any)
	prompt, limit := idsOf(q["input_ids"]), numberOf(params["max_new_tokens"], 16)
	send := func(all []uint32) string {
		finish := "null"
		if len(all) == limit {
			finish = fmt.Sprintf(`{"type":"length","length":%d}`, limit)
		}
		return fmt.Sprintf(`{"text":%s,"output_ids":%s,"meta_info":{"id":"g1","finish_reason":%s,"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":2}}`,
			quote(textsOf(all)), list(all), finish, len(prompt), len(all))
	}
	if q["stream"] != true {
		io.WriteString(w, send([]uint32{1}))
		return
	}
	e.run(w, prompt, limit, func(all []uint32) { fmt.Fprintf(w, "data: %s\n\n", send(all)) })
	io.WriteString(w, "data: [DONE]\n\n")
}
