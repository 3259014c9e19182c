package emulator

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

// maxRequestID bounds an X-Request-Id that becomes a part of the answer.
const maxRequestID = 256

// defaultCompletion is how many tokens /v1/completions makes when it is not
// told; chat goes on to the end of the context.
const defaultCompletion = 16

// generate serves both generating endpoints.
func (e *Engine) generate(a api, w http.ResponseWriter, r *http.Request) {
	body, bad := readBody(w, r)
	if bad != nil {
		writeError(w, bad)
		return
	}
	q, bad := decode(a, body)
	if bad == nil {
		bad = e.checkModel(q.model)
	}
	st := &stream{engine: e, arrived: time.Now(), ready: make(chan struct{}, 1)}
	if !q.stream && len(q.stops) == 0 {
		st.notify = atTheEnd
	}
	if bad == nil {
		bad = e.claim(r.Header.Get(legHeader), st)
	}
	if bad != nil {
		writeError(w, bad)
		return
	}
	defer e.disclaim(st)
	var prompt []model.Token // as the answer repeats it
	if q.reservation == "" {
		prompt, bad = e.begin(a, &q, st)
	} else {
		bad = e.adopt(r.Context(), a, &q, st)
	}
	if bad != nil {
		writeError(w, bad)
		return
	}
	e.name(st)
	ans := &answer{
		api: a, id: requestID(a, r), model: cmp.Or(q.model, e.cfg.Model), fingerprint: e.fingerprint,
		created: time.Now().Unix(), request: &q, promptTokens: st.prompt,
	}
	if q.tokenIDs {
		ans.prompt = prompt
	}
	// The sequence has its own copy: a long prompt is not kept twice while its
	// answer is generated.
	q.text, q.ids, q.messages = "", nil, nil
	text := newText(e.model.Vocabulary, &q)
	text.seed(st.tail)
	if q.stream {
		e.streamed(w, r, st, ans, text)
	} else {
		e.assembled(w, r, st, ans, text)
	}
}

// begin submits a request with a prompt, and returns the prompt.
func (e *Engine) begin(a api, q *request, st *stream) ([]model.Token, *apiError) {
	prompt, bad := e.promptIDs(a, q)
	if bad != nil {
		return nil, bad
	}
	asked, bad := e.asked(a, q, st, len(prompt))
	if bad != nil {
		return nil, bad
	}
	asked.Prompt = prompt
	if q.from > 0 {
		st.tail = tail(e.model.Vocabulary, prompt[min(q.from, len(prompt)):])
	}
	st.prompt, st.sequence = len(prompt), batch.NewSequence(asked, e.cfg.BlockTokens)
	if err := e.submit(st); err != nil {
		return nil, unavailable(err)
	}
	return prompt, nil
}

// asked is what a request wants of the scheduler, but for its prompt.
func (e *Engine) asked(a api, q *request, st *stream, prompt int) (batch.Request, *apiError) {
	limit, bad := e.outputLimit(a, q, prompt)
	adapter := e.adapter(q.model)
	return batch.Request{
		MaxOutput: limit, MinOutput: q.minTokens, IgnoreEOS: q.ignoreEOS,
		StopTokens: q.stopIDs, Salt: q.salt ^ adapter, Adapter: adapter, Receiver: st,
	}, bad
}

// outputLimit is how many tokens a request may generate, or why it may not.
func (e *Engine) outputLimit(a api, q *request, prompt int) (int, *apiError) {
	room := int(e.cfg.Context) - prompt
	if room < max(1, q.maxTokens) {
		return 0, invalid("input_tokens", "This model's maximum context length is %d tokens. However, %d output tokens were requested and the prompt has %d input tokens, %d in all. Shorten the prompt or ask for fewer output tokens.",
			int64(e.cfg.Context), max(1, q.maxTokens), prompt, prompt+max(1, q.maxTokens))
	}
	switch {
	case q.maxTokens > 0:
		return q.maxTokens, nil
	case a == completions:
		return min(room, max(defaultCompletion, q.minTokens)), nil
	}
	return room, nil
}

// requestID is the id of a response: the client's X-Request-Id, or random.
func requestID(a api, r *http.Request) string {
	prefix := "cmpl-"
	if a == chat {
		prefix = "chatcmpl-"
	}
	if id := r.Header.Get("X-Request-Id"); id != "" && len(id) <= maxRequestID {
		return prefix + strings.ToValidUTF8(id, "\ufffd")
	}
	return fmt.Sprintf("%s%016x", prefix, rand.Uint64())
}

// Why a handler stops before the end of its request.
var (
	errGone = errors.New("the client is gone")
	errDead = errors.New("the engine stopped while it was generating")
	// errDropped is a whole answer's: a stream that was dropped just ends.
	errDropped = errors.New("the request was taken away from this engine")
)

// wait returns when a stream has something new. It fails when the client or
// the engine is gone; the sequence is then aborted.
func (e *Engine) wait(r *http.Request, st *stream) error {
	select {
	case <-st.ready:
		return nil
	case <-r.Context().Done():
		e.abort(st)
		return errGone
	case <-e.done:
		return errDead
	}
}

// consume turns new tokens into text. It returns the tokens that belong to
// the answer, and how it ended if it did.
func consume(t *text, q *request, ids []model.Token, finish batch.Finish) ([]model.Token, ending) {
	for i, id := range ids {
		final := i == len(ids)-1 && finish != batch.Unfinished
		if final && finish == batch.AtStop && !q.includeStop {
			// The token that ended the text is counted, and not shown.
			break
		}
		if stop, ok := t.add(id); ok {
			return ids[:i+1], ending{reason: "stop", stop: stop, by: byString}
		}
	}
	switch finish {
	case batch.AtLength:
		return ids, ending{reason: "length"}
	case batch.AtStop:
		end := ending{reason: "stop"}
		if last := ids[len(ids)-1]; last != model.EndOfText {
			end.token, end.by = last, byToken
		}
		return ids, end
	}
	return ids, ending{}
}

// streamed answers with server-sent events, one per token while the client
// keeps up, and with several tokens in one when it does not.
func (e *Engine) streamed(w http.ResponseWriter, r *http.Request, st *stream, ans *answer, t *text) {
	control := http.NewResponseController(w)
	defer unlimited(control)
	var (
		out     []byte
		show    []byte
		ids     []model.Token
		finish  batch.Finish
		end     ending
		allowed time.Time // until when the write deadline need not be renewed
	)
	for end.reason == "" {
		if err := e.wait(r, st); err != nil {
			if errors.Is(err, errDead) {
				e.broken(w, ans)
			}
			return
		}
		ids, finish, ans.cached = st.take(ids)
		if finish == batch.Dropped {
			e.disclaim(st)
			if ans.sent == 0 {
				writeError(w, unavailable(errDropped))
			}
			return
		}
		out = out[:0]
		if ans.sent == 0 {
			if len(ids) == 0 {
				continue
			}
			h := w.Header()
			h.Set("Content-Type", "text/event-stream; charset=utf-8")
			h.Set("Cache-Control", "no-cache")
			w.WriteHeader(http.StatusOK)
			out = ans.first(out)
		}
		var mine []model.Token
		mine, end = consume(t, ans.request, ids, finish)
		show = t.after(end, show[:0])
		out = ans.chunk(out, show, mine, end)
		ans.prompt = nil // told in the first chunk
		if end.reason != "" {
			out = ans.last(out)
			e.disclaim(st)
		}
		if now := time.Now(); now.After(allowed) {
			_ = control.SetWriteDeadline(now.Add(writeTimeout))
			allowed = now.Add(writeTimeout / 4)
		}
		if _, err := w.Write(out); err != nil {
			e.abort(st)
			return
		}
		if err := control.Flush(); err != nil {
			e.abort(st)
			return
		}
	}
	if end.by == byString {
		e.abort(st) // the engine does not know stop strings
	}
}

// unlimited takes the write deadline off: it belongs to the connection, which
// may serve other requests.
func unlimited(control *http.ResponseController) {
	_ = control.SetWriteDeadline(time.Time{})
}

// broken ends a stream whose engine has stopped: an error event if the answer
// has begun, else a status.
func (e *Engine) broken(w http.ResponseWriter, ans *answer) {
	err := &apiError{Message: errDead.Error(), Type: "InternalServerError", Code: http.StatusInternalServerError}
	if ans.sent == 0 {
		writeError(w, unavailable(errStopped))
		return
	}
	fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", err.body())
}

// assembled answers with one JSON object when all is generated.
func (e *Engine) assembled(w http.ResponseWriter, r *http.Request, st *stream, ans *answer, t *text) {
	var (
		all, ids []model.Token
		show     []byte
		finish   batch.Finish
		end      ending
	)
	for end.reason == "" {
		if err := e.wait(r, st); err != nil {
			if errors.Is(err, errDead) {
				writeError(w, unavailable(errStopped))
			}
			return
		}
		ids, finish, ans.cached = st.take(ids)
		if finish == batch.Dropped {
			writeError(w, unavailable(errDropped))
			return
		}
		var mine []model.Token
		mine, end = consume(t, ans.request, ids, finish)
		all = append(all, mine...)
		show = t.after(end, show)
	}
	if end.by == byString {
		e.abort(st)
	}
	e.disclaim(st)
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	defer unlimited(control)
	writeJSON(w, http.StatusOK, ans.whole(nil, show, all, end))
	_ = control.Flush() // within the deadline
}
