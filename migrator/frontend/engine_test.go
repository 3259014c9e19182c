package frontend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// engine is an inference engine that answers like vLLM 0.32. The next token is a
// function of all tokens before it, so that a continuation from wrong ids is
// detected.
type engine struct {
	*httptest.Server
	t                testing.TB
	calls            atomic.Int64 // generating requests
	last             atomic.Pointer[http.Request]
	body             atomic.Pointer[string]
	unhealthy        atomic.Bool
	refusesIDs       atomic.Bool                               // it refuses return_token_ids with streaming chats, like SGLang 0.5.23
	hidesCached      atomic.Bool                               // it reports no cached tokens, like stock vLLM
	ignoresProbes    atomic.Bool                               // it does not answer health checks
	heldProbe        atomic.Pointer[heldProbe]                 // the next health check waits; nil: it does not
	ignoredProbes    atomic.Int64                              // health checks that it did not answer
	tokensPerEvent   atomic.Int64                              // tokens of one event, as for a slow reader; 0 means 1
	passthrough      atomic.Pointer[http.HandlerFunc]          // answers passed-through requests; nil echoes the method and path
	maxNewTokens     atomic.Int64                              // bounds every answer, as vLLM's generation config does; 0 does not
	limitsDefault    atomic.Bool                               // maxNewTokens bounds only chats without max_tokens
	probeAnswer      atomic.Pointer[func(http.ResponseWriter)] // answers requests for the limit; nil states it
	moreUsage        string                                    // more of the prompt's usage; set before requests
	connector        *connector                                // nil for none
	noDetokenize     atomic.Bool                               // it cannot turn ids into text
	detokenized      atomic.Int64                              // how often it was asked to
	detokenizesWrong atomic.Bool                               // as an engine of another model
	detokenizeTime   atomic.Int64                              // that it takes, in nanoseconds

	mu       sync.Mutex
	runs     map[string]*run              // by leg
	reserved map[string]reservation       // by name
	pace     func(n int, r *http.Request) // called before token n; nil for none
	override http.HandlerFunc             // answers generating requests instead if not nil
}

// heldProbe is a health check that is answered, as it was when it arrived, after release is closed.
type heldProbe struct{ arrived, release chan struct{} }

func newEngine(t testing.TB) *engine {
	e := &engine{t: t, runs: make(map[string]*run), reserved: make(map[string]reservation)}
	e.Server = &httptest.Server{Listener: listen(), Config: &http.Server{Handler: e}}
	e.Start()
	t.Cleanup(e.Close)
	return e
}

func (e *engine) set(pace func(int, *http.Request), override http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pace, e.override = pace, override
}

// pass makes the engine answer passed-through requests by answer.
func (e *engine) pass(answer http.HandlerFunc) { e.passthrough.Store(&answer) }

// die closes the engine's port and connections.
func (e *engine) die() {
	e.Listener.Close()
	e.CloseClientConnections()
}

// post asks the engine directly.
func (e *engine) post(path, body string) (*http.Response, string) {
	e.t.Helper()
	c := &http.Client{Transport: memory.transport(e.t, 1)}
	defer c.CloseIdleConnections()
	return post(e.t, c, strings.TrimPrefix(e.URL, "http://"), path, body)
}

// sendEvents makes the engine answer with events; if cut is true it then dies.
func (e *engine) sendEvents(events string, cut bool) {
	e.set(nil, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, events)
		w.(http.Flusher).Flush()
		if cut {
			panic(http.ErrAbortHandler)
		}
	})
}

// blockAt makes answers wait before a token, 0 for the first, until proceed is
// closed.
func (e *engine) blockAt(token int) (proceed chan struct{}) {
	proceed = make(chan struct{})
	e.set(func(n int, r *http.Request) {
		if n == token {
			await(r, proceed)
		}
	}, nil)
	return proceed
}

// await waits until proceed is closed or the request ends.
func await(r *http.Request, proceed <-chan struct{}) {
	select {
	case <-proceed:
	case <-r.Context().Done():
	}
}

// silent is an engine's handler that never answers.
func silent(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body) // or the server does not notice that the request is cancelled
	<-r.Context().Done()
}

// breaks is an engine's handler that cuts the connection.
func breaks(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	panic(http.ErrAbortHandler)
}

// nextToken returns the token after ids.
func nextToken(ids []uint32) uint32 {
	h := uint32(2166136261)
	for _, id := range ids {
		h = (h ^ id) * 16777619
	}
	return h>>8%997 + 1
}

// detokenizer turns tokens into text like vLLM's: every seventh token ends inside
// a character, whose bytes come with the next one that does not.
type detokenizer struct{ pending string }

func (v *detokenizer) add(id uint32) string {
	if id%7 == 0 {
		v.pending += "é"
		return ""
	}
	s := v.pending + fmt.Sprintf(" w%d\"\n<", id)
	v.pending = ""
	return s
}

// begin takes a prompt. If it ends inside a character, the next text is that of the whole prompt,
// as with vLLM.
func (v *detokenizer) begin(prompt []uint32) {
	if len(prompt) == 0 || prompt[len(prompt)-1]%7 > 0 {
		return
	}
	all := detokenizer{}
	for _, id := range prompt {
		v.pending += all.add(id)
	}
	v.pending += all.pending
}

// detokenize answers with the text of ids; incomplete bytes at its end become U+FFFD.
func (e *engine) detokenize(w http.ResponseWriter, r *http.Request) {
	e.detokenized.Add(1)
	time.Sleep(time.Duration(e.detokenizeTime.Load()))
	var req struct{ Tokens []uint32 }
	if json.NewDecoder(r.Body).Decode(&req) != nil || e.noDetokenize.Load() {
		http.Error(w, "no", http.StatusNotFound)
		return
	}
	text, v := "", detokenizer{}
	for _, id := range req.Tokens {
		text += v.add(id)
	}
	if e.detokenizesWrong.Load() {
		text, v.pending = "x", ""
	}
	if v.pending != "" {
		text += incomplete
	}
	fmt.Fprintf(w, `{"prompt":%s}`, quote(text))
}

func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.Encode(s)
	return strings.TrimSuffix(b.String(), "\n")
}

type engineRequest struct {
	Model         string          `json:"model"`
	Prompt        json.RawMessage `json:"prompt"`
	Messages      json.RawMessage `json:"messages"`
	MaxTokens     *int            `json:"max_tokens"`
	Stream        bool            `json:"stream"`
	IDs           bool            `json:"return_token_ids"`
	StreamOptions *struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
	KV *struct {
		IDs         []uint32 `json:"prompt_token_ids"`
		Reservation string   `json:"cascade_reservation"`
		transferParams
	} `json:"kv_transfer_params"`
}

func formatIDs(ids []uint32, show bool) string {
	switch {
	case !show:
		return "null"
	case ids == nil:
		return "[]"
	}
	b, _ := json.Marshal(ids)
	return string(b)
}

// outputLimit returns how many tokens an answer has.
func (e *engine) outputLimit(path string, maxTokens *int) int {
	most, limit := int(e.maxNewTokens.Load()), 16
	switch {
	case maxTokens != nil:
		limit = *maxTokens
	case most > 0 && strings.Contains(path, "chat"):
		limit = most
	}
	if most > 0 && !e.limitsDefault.Load() {
		limit = min(limit, most)
	}
	return limit
}

// refusesMinTokens refuses a request for more tokens than any engine generates,
// which front ends send to read the engine's limit.
func (e *engine) refusesMinTokens(w http.ResponseWriter, body []byte) bool {
	var req struct {
		Least     int             `json:"min_tokens"`
		MaxTokens json.RawMessage `json:"max_tokens"`
	}
	if json.Unmarshal(body, &req) != nil || req.Least < 1<<30 {
		return false
	}
	if answer := e.probeAnswer.Load(); answer != nil {
		(*answer)(w)
		return true
	}
	const context = 131071 // for the answer to one token
	limit := context
	if most := int(e.maxNewTokens.Load()); most > 0 {
		limit = most
	}
	asked, err := strconv.Atoi(string(req.MaxTokens))
	if err == nil && asked > context {
		refuse(w, `{"error":{"message":"This model's maximum context length is 131072 tokens.","code":400}}`)
		return true
	}
	if err == nil && (asked < limit || e.limitsDefault.Load()) {
		limit = asked
	}
	refuse(w, `{"error":{"message":"min_tokens must be less than or equal to max_tokens=%d, got %d.","type":"BadRequestError","param":null,"code":400}}`, limit, req.Least)
	return true
}

// refuse answers 400.
func refuse(w http.ResponseWriter, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	fmt.Fprintf(w, format, args...)
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health":
		if e.ignoresProbes.Load() {
			<-r.Context().Done()
			e.ignoredProbes.Add(1)
		}
		unhealthy := e.unhealthy.Load()
		if h := e.heldProbe.Swap(nil); h != nil {
			close(h.arrived)
			<-h.release
		}
		if unhealthy {
			w.WriteHeader(503)
		}
		return
	case "/v1/completions", "/v1/chat/completions":
	case "/detokenize":
		e.detokenize(w, r)
		return
	default:
		if rest := e.passthrough.Load(); rest != nil {
			(*rest)(w, r)
			return
		}
		if r.URL.Path == "/metrics" && e.connector != nil && !e.connector.hidden {
			io.WriteString(w, "vllm:nixl_num_failed_transfers_total 0\n")
			return
		}
		fmt.Fprintf(w, "passed %s %s", r.Method, r.URL.Path)
		return
	}
	raw, _ := io.ReadAll(r.Body)
	if e.refusesMinTokens(w, raw) {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(raw))
	e.mu.Lock()
	pace, override := e.pace, e.override
	e.mu.Unlock()
	n := e.calls.Add(1)
	e.last.Store(r)
	if override != nil {
		override(w, r)
		return
	}
	var req engineRequest
	body := string(raw)
	e.body.Store(&body)
	if err := json.Unmarshal(raw, &req); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	max := e.outputLimit(r.URL.Path, req.MaxTokens)
	if max < 1 {
		refuse(w, `{"error":{"message":"max_tokens must be at least 1, got %d.","type":"BadRequestError","param":"max_tokens","code":400}}`, max)
		return
	}
	chat := strings.Contains(r.URL.Path, "chat")
	if chat && req.Stream && req.IDs && e.refusesIDs.Load() {
		refuse(w, `{"object":"error","message":"return_token_ids is not supported with streaming on /v1/chat/completions. Please set stream=false when using return_token_ids=true.","type":"BadRequestError","param":null,"code":400}`)
		return
	}
	var prompt []uint32
	if json.Unmarshal(req.Prompt, &prompt) != nil || prompt == nil {
		for _, c := range string(req.Prompt) + string(req.Messages) {
			prompt = append(prompt, uint32(c))
		}
	}
	origin, v := len(prompt), detokenizer{}
	if req.KV != nil && req.KV.IDs != nil {
		prompt, origin = req.KV.IDs, len(req.KV.IDs)
	}
	offer := "null"
	if req.KV != nil && e.connector != nil {
		prompt, offer = e.connector.serve(r, req.KV.transferParams, prompt)
	}
	if req.KV == nil || req.KV.Reservation == "" {
		v.begin(prompt)
	} else {
		e.mu.Lock()
		adopted, ok := e.reserved[req.KV.Reservation]
		delete(e.reserved, req.KV.Reservation)
		e.mu.Unlock()
		if !ok || string(req.Prompt)+string(req.Messages) != "[]" {
			http.Error(w, "no such reservation, or a prompt too many", 400)
			return
		}
		prompt, origin = adopted.ids, adopted.origin
		for _, id := range prompt[origin:] {
			v.add(id) // the beginning of a character that is split
		}
	}
	id, object, created := fmt.Sprintf("cmpl-%d", n), "text_completion", 1700000000+n
	if chat {
		id, object = "chat"+id, "chat.completion"
	}
	if req.Stream {
		it := &run{ids: prompt, origin: origin}
		if leg := r.Header.Get(LegHeader); leg != "" {
			e.mu.Lock()
			e.runs[leg] = it
			e.mu.Unlock()
			defer func() {
				e.mu.Lock()
				delete(e.runs, leg)
				e.mu.Unlock()
			}()
		}
		e.stream(w, r, req, chat, id, object, created, it, v, max, pace)
		return
	}
	var out []uint32
	all, said := prompt, ""
	for i := range max {
		if pace != nil {
			pace(i, r)
		}
		next := nextToken(all)
		all = append(all[:len(all):len(all)], next)
		out, said = append(out, next), said+v.add(next)
	}
	w.Header().Set("Content-Type", "application/json")
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d,"multimodal_tokens":null},"completion_tokens_details":null}`, len(prompt), len(all), max, len(prompt)/16*16)
	if chat {
		fmt.Fprintf(w, `{"id":%q,"object":%q,"created":%d,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":%s,"refusal":null,"annotations":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":%s,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-fake","usage":%s,"prompt_logprobs":null,"prompt_token_ids":%s,"kv_transfer_params":null}`,
			id, object, created, req.Model, quote(said), formatIDs(out, req.IDs), usage, formatIDs(prompt, req.IDs))
		return
	}
	fmt.Fprintf(w, `{"id":%q,"object":%q,"created":%d,"model":%q,"choices":[{"index":0,"text":%s,"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":%s,"prompt_logprobs":null,"prompt_token_ids":%s,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-fake","usage":%s,"kv_transfer_params":%s,"metrics":null}`,
		id, object, created, req.Model, quote(said), formatIDs(out, req.IDs), formatIDs(prompt, req.IDs), usage, offer)
}

func (e *engine) stream(w http.ResponseWriter, r *http.Request, req engineRequest, chat bool, id, object string, created int64, it *run, v detokenizer, max int, pace func(int, *http.Request)) {
	usage := req.StreamOptions != nil && req.StreamOptions.Usage
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	rc := http.NewResponseController(w)
	rc.Flush()
	send := func(format string, args ...any) {
		fmt.Fprintf(w, "data: "+format+"\n\n", args...)
		rc.Flush()
	}
	if chat {
		object += ".chunk"
	}
	head := fmt.Sprintf(`{"id":%q,"object":%q,"created":%d,"model":%q`, id, object, created, req.Model)
	prompt := it.ids
	var ids []uint32 // of the event
	var text string
	for i := range max {
		if pace != nil {
			pace(i, r)
		}
		if !it.lockRunning(r.Context()) {
			return
		}
		next := nextToken(it.ids)
		it.ids = append(it.ids[:len(it.ids):len(it.ids)], next)
		it.mu.Unlock()
		if chat && i == 0 {
			send(`%s,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":%s}`, head, formatIDs(prompt, req.IDs))
		}
		ids, text = append(ids, next), text+v.add(next)
		if i < max-1 && int64(len(ids)) < e.tokensPerEvent.Load() {
			continue
		}
		said := quote(text)
		finish, tail := "null", ""
		if i == max-1 {
			finish = `"length"`
			if !usage {
				tail = `,"system_fingerprint":"vllm-fake"`
			}
		}
		if chat {
			stop := ""
			if i == max-1 {
				stop = `,"stop_reason":null`
			}
			send(`%s,"choices":[{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":%s%s,"token_ids":%s}]%s}`, head, said, finish, stop, formatIDs(ids, req.IDs), tail)
		} else {
			send(`%s,"choices":[{"index":0,"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}]%s}`, head, said, finish, formatIDs(prompt, req.IDs && i < len(ids)), formatIDs(ids, req.IDs), tail)
		}
		ids, text = nil, ""
	}
	if usage {
		details := fmt.Sprintf(`{"cached_tokens":%d%s}`, len(prompt)/16*16, e.moreUsage)
		if e.hidesCached.Load() {
			details = "null"
		}
		send(`%s,"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":%s},"system_fingerprint":"vllm-fake"}`, head, len(prompt), len(it.ids), max, details)
	}
	send("[DONE]")
}
