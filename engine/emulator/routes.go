package emulator

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

// version is the vLLM release whose wire format is emulated.
const version = "0.32.0"

// Deadlines for clients.
const (
	readTimeout  = 60 * time.Second // for the body
	writeTimeout = 60 * time.Second // without progress, while a client does not read
)

// routes returns the table of endpoints.
func (e *Engine) routes() http.Handler {
	mux := http.NewServeMux()
	known := make(map[string]bool)
	handle := func(method, path string, h http.HandlerFunc) {
		known[path] = true
		mux.HandleFunc(method+" "+path, h)
	}
	post := func(path string, h func(http.ResponseWriter, *http.Request) *apiError) {
		handle("POST", path, func(w http.ResponseWriter, r *http.Request) {
			if bad := h(w, r); bad != nil {
				writeError(w, bad)
			}
		})
	}
	post("/v1/completions", func(w http.ResponseWriter, r *http.Request) *apiError { return e.generate(completions, w, r) })
	post("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) *apiError { return e.generate(chat, w, r) })
	post("/v1/embeddings", e.embed)
	handle("GET", "/v1/models", e.models)
	post("/tokenize", e.tokenize)
	post("/detokenize", e.detokenize)
	handle("GET", "/health", e.health)
	handle("GET", "/ping", e.health)
	handle("GET", "/version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, []byte(`{"version":"`+version+`"}`))
	})
	handle("GET", "/kv_event_sources", e.kvEventSources)
	post("/reset_prefix_cache", e.resetPrefixCache)
	handle("GET", "/metrics", e.metrics.handler().ServeHTTP)
	e.faultRoutes(handle)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if known[r.URL.Path] {
			writeJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
			return
		}
		writeJSON(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
	})
	return mux
}

// readBody reads a request's body within maxBody and readTimeout.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	control := http.NewResponseController(w)
	// Not every ResponseWriter supports deadlines; the server's own remain.
	_ = control.SetReadDeadline(time.Now().Add(readTimeout))
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	var body []byte
	var err error
	if n := r.ContentLength; n > 0 && n <= maxBody {
		body = make([]byte, n)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(r.Body)
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large) || r.ContentLength > maxBody:
		return nil, &apiError{Message: "the request body is larger than " + strconv.Itoa(maxBody) + " bytes", Type: "RequestEntityTooLarge", Code: http.StatusRequestEntityTooLarge}
	case err != nil:
		return nil, malformed("the request body could not be read: %v", err)
	}
	return body, nil
}

// checkModel rejects a model that is not served here. An empty name is the served model.
func (e *Engine) checkModel(name string) *apiError {
	if name == "" || name == e.cfg.Model || slices.Contains(e.cfg.Adapters, name) {
		return nil
	}
	param := "model"
	return &apiError{Message: "The model `" + name + "` does not exist.", Type: "NotFoundError", Param: &param, Code: http.StatusNotFound}
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	b := e.describe([]byte(`{"object":"list","data":[`), e.cfg.Model, "")
	for _, name := range e.cfg.Adapters {
		b = e.describe(append(b, ','), name, e.cfg.Model)
	}
	writeJSON(w, http.StatusOK, append(b, `]}`...))
}

// describe adds a served name to a list of models; parent is the base model of an adapter.
func (e *Engine) describe(b []byte, name, parent string) []byte {
	b = quote(append(b, `{"id":`...), name)
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, e.created.Unix(), 10)
	b = append(b, `,"owned_by":"vllm","root":`...)
	b = quote(b, name)
	b = append(b, `,"parent":`...)
	if parent == "" {
		b = append(b, `null,"max_model_len":`...)
		b = strconv.AppendInt(b, int64(e.cfg.Context), 10)
	} else {
		b = append(quote(b, parent), `,"max_model_len":null`...)
	}
	return append(b, `,"permission":[]}`...)
}

// adapter returns the seed of a request for an adapter; 0 is the base model.
func (e *Engine) adapter(name string) uint64 {
	if name == "" || name == e.cfg.Model {
		return 0
	}
	return xxhash.Sum64String(name)
}

// origin returns what separates the prefixes of requests for a model or an adapter from others.
func (e *Engine) origin(name, cacheSalt string) batch.Origin {
	o := batch.Origin{Salt: cacheSalt, AdapterID: slices.Index(e.cfg.Adapters, name) + 1}
	if o.AdapterID > 0 {
		o.Adapter = name
	}
	return o
}

// health answers 200 while the replica runs.
func (e *Engine) health(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	phase := e.phase
	e.mu.Unlock()
	if phase != serving {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// readObject reads a request's body, a JSON object.
func readObject(w http.ResponseWriter, r *http.Request) (gjson.Result, *apiError) {
	body, bad := readBody(w, r)
	if bad != nil {
		return gjson.Result{}, bad
	}
	return parseObject(body)
}

// tokenize counts and lists the tokens of a prompt or of chat messages.
func (e *Engine) tokenize(w http.ResponseWriter, r *http.Request) *apiError {
	root, bad := readObject(w, r)
	if bad != nil {
		return bad
	}
	a := completions
	if root.Get("messages").Exists() {
		a = chat
	}
	var q request
	for _, key := range []string{"model", "prompt", "messages", "tools"} {
		if v := root.Get(key); v.Exists() && bad == nil {
			bad = q.field(a, key, v)
		}
	}
	if bad == nil {
		bad = e.checkModel(q.model)
	}
	if bad != nil {
		return bad
	}
	ids, bad := e.promptIDs(a, &q)
	if bad != nil {
		return bad
	}
	b := fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":`, len(ids), int64(e.cfg.Context))
	writeJSON(w, http.StatusOK, append(appendIDs(b, ids), `,"token_strs":null}`...))
	return nil
}

// detokenize converts ids to text.
func (e *Engine) detokenize(w http.ResponseWriter, r *http.Request) *apiError {
	root, bad := readObject(w, r)
	var name string
	if v := root.Get("model"); bad == nil && v.Exists() {
		name, bad = str("model", v)
	}
	if bad == nil {
		bad = e.checkModel(name)
	}
	if bad != nil {
		return bad
	}
	ids, bad := tokens("tokens", root.Get("tokens"))
	if bad != nil {
		return bad
	}
	writeJSON(w, http.StatusOK, append(quote([]byte(`{"prompt":`), e.model.Decode(ids)), '}'))
	return nil
}

// promptIDs returns the ids of a request's prompt.
func (e *Engine) promptIDs(a api, q *request) ([]model.Token, *apiError) {
	if len(q.ids) > 0 {
		return q.ids, nil
	}
	if a == completions {
		return e.encode(q.text)
	}
	// The chat template, in the manner of ChatML: every turn between its marks, then the
	// opening of the assistant's turn.
	var ids []model.Token
	if q.tools.raw != "" {
		q.messages = append([]message{{role: "tools", content: q.tools.raw}}, q.messages...)
	}
	for _, m := range append(q.messages[:len(q.messages):len(q.messages)], message{role: "assistant"}) {
		turn, err := e.encode(m.role + "\n" + m.content)
		if err != nil {
			return nil, err
		}
		ids = append(append(ids, model.MessageStart), turn...)
		ids = append(ids, model.MessageEnd)
	}
	return ids[:len(ids)-1], nil // the assistant's turn stays open
}

func (e *Engine) encode(text string) ([]model.Token, *apiError) {
	ids, err := e.model.Encode(text)
	if err != nil {
		return nil, invalid("prompt", "the prompt cannot be tokenised: %v", err)
	}
	return ids, nil
}
