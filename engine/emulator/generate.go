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

// maxRequestID bounds an X-Request-Id that is copied to the answer.
const maxRequestID = 256

// defaultCompletion is the default max_tokens of /v1/completions; chat continues to the end
// of the context.
const defaultCompletion = 16

// generate serves both generating endpoints.
func (e *Engine) generate(a api, w http.ResponseWriter, r *http.Request) *apiError {
	body, bad := readBody(w, r)
	if bad != nil {
		return bad
	}
	q, bad := decode(a, body)
	if bad == nil {
		bad = e.checkModel(q.model)
	}
	st := &stream{engine: e, arrived: time.Now(), ready: make(chan struct{}, 1), atEnd: !q.stream && len(q.stops) == 0, faults: e.faults.Load()}
	if bad == nil {
		bad = e.claimLeg(r.Header.Get(legHeader), st)
	}
	if bad != nil {
		return bad
	}
	defer e.releaseLeg(st)
	id := requestID(a, r)
	e.transfer.prepare(&q, st)
	var prompt []model.Token // echoed in the answer
	if q.reservation == "" {
		prompt, bad = e.submitPrompt(a, &q, st)
	} else {
		bad = e.adopt(r.Context(), a, &q, st)
	}
	if bad != nil {
		return bad
	}
	e.registerLeg(st)
	ans := &answer{
		api: a, id: id, model: cmp.Or(q.model, e.cfg.Model), fingerprint: e.fingerprint,
		created: time.Now().Unix(), request: &q, vocabulary: e.model.Vocabulary, promptTokens: st.prompt, noDetails: st.faults.NoPromptDetails,
	}
	if q.tokenIDs {
		ans.prompt = prompt
	}
	// The sequence has its own copy: free a long prompt while its answer is generated.
	q.text, q.ids, q.messages, q.tools.raw = "", nil, nil, ""
	text := newText(e.model.Vocabulary, &q)
	text.begin(prompt)
	text.seed(st.tail)
	if q.stream {
		e.writeStream(w, r, st, ans, text)
	} else {
		e.writeWhole(w, r, st, ans, text)
	}
	return nil
}

// submitPrompt submits a request with a prompt and returns the prompt.
func (e *Engine) submitPrompt(a api, q *request, st *stream) ([]model.Token, *apiError) {
	prompt, bad := e.promptIDs(a, q)
	if bad != nil {
		return nil, bad
	}
	asked, bad := e.schedulerRequest(a, q, st, len(prompt))
	if bad != nil {
		return nil, bad
	}
	asked.Prompt = prompt
	st.prompt, st.sequence = len(prompt), batch.NewSequence(asked, e.cfg.BlockTokens)
	if err := e.submit(st); err != nil {
		return nil, e.notServing(err)
	}
	return prompt, nil
}

// schedulerRequest returns the scheduler's request without its prompt.
func (e *Engine) schedulerRequest(a api, q *request, st *stream, prompt int) (batch.Request, *apiError) {
	limit, bad := e.outputLimit(a, q, prompt)
	adapter := e.adapter(q.model)
	return batch.Request{
		MaxOutput: limit, MinOutput: q.minTokens, IgnoreEOS: q.ignoreEOS,
		StopTokens: q.stopIDs, Salt: q.salt ^ adapter, Adapter: adapter, Origin: e.origin(q.model, q.saltText), Receiver: st,
		Load: st.remote != nil, Pin: st.handoffID != "",
	}, bad
}

// outputLimit returns how many tokens a request may generate, or why it may not.
func (e *Engine) outputLimit(a api, q *request, prompt int) (int, *apiError) {
	room := int(e.cfg.Context) - prompt
	if room < max(1, q.maxTokens) {
		return 0, invalid("input_tokens", "This model's maximum context length is %d tokens. However, %d output tokens were requested and the prompt has %d input tokens, %d in all. Shorten the prompt or ask for fewer output tokens.",
			int64(e.cfg.Context), max(1, q.maxTokens), prompt, prompt+max(1, q.maxTokens))
	}
	limit := room
	switch {
	case q.maxTokens > 0:
		limit = q.maxTokens
	case a == completions && !q.unlimited:
		limit = min(room, max(defaultCompletion, q.minTokens))
	}
	if most := e.faults.Load().MaxNewTokens; most > 0 {
		limit = min(limit, most)
	}
	if q.minTokens > limit {
		// In vLLM's words, in which front ends read the limit.
		return 0, invalid("", "min_tokens must be less than or equal to max_tokens=%d, got %d.", limit, q.minTokens)
	}
	return limit, nil
}

// requestID returns the id of a response: the client's X-Request-Id, or random.
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
	errClientGone    = errors.New("the client disconnected")
	errEngineStopped = errors.New("the engine stopped during generation")
	// errDropped applies to answers that are not streamed: a dropped stream just ends.
	errDropped = errors.New("the request was dropped from this engine")
)

// wait returns when a stream has new tokens. It fails when the client or the engine is gone,
// and then aborts the sequence.
func (e *Engine) wait(r *http.Request, st *stream) error {
	select {
	case <-st.ready:
		return nil
	case <-r.Context().Done():
		e.abort(st)
		return errClientGone
	case <-e.done:
		return errEngineStopped
	}
}

// decodeTokens decodes new tokens. It returns the tokens that belong to the answer, and how it
// ended, if it did.
func decodeTokens(t *text, q *request, ids []model.Token, finish batch.Finish) ([]model.Token, ending) {
	for i, id := range ids {
		final := i == len(ids)-1 && finish != batch.Unfinished
		if final && finish == batch.AtStop && !q.includeStop {
			// The token that ended the text is counted but not shown.
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

// writeStream answers with server-sent events, one per token while the client keeps up, and
// with several tokens per event when it does not.
func (e *Engine) writeStream(w http.ResponseWriter, r *http.Request, st *stream, ans *answer, t *text) {
	control := http.NewResponseController(w)
	defer clearWriteDeadline(control)
	var (
		out     []byte
		show    []byte
		piece   []byte // show as the client gets it
		ids     []model.Token
		finish  batch.Finish
		end     ending
		allowed time.Time // the write deadline need not be renewed before
	)
	for end.reason == "" {
		if err := e.wait(r, st); err != nil {
			if errors.Is(err, errEngineStopped) {
				e.failStream(w, ans)
			}
			return
		}
		ids, finish, ans.cached = st.take(ids)
		if finish == batch.Dropped {
			e.releaseLeg(st)
			if ans.sent == 0 {
				writeError(w, unavailable(errDropped))
			}
			return
		}
		if len(ids) == 0 {
			continue // woken for tokens that it took with earlier ones
		}
		out = out[:0]
		if ans.sent == 0 {
			h := w.Header()
			h.Set("Content-Type", "text/event-stream; charset=utf-8")
			h.Set("Cache-Control", "no-cache")
			w.WriteHeader(http.StatusOK)
			out = ans.writeFirst(out)
		}
		var mine []model.Token
		mine, end = decodeTokens(t, ans.request, ids, finish)
		show = t.takeAfter(end, show[:0])
		piece = ans.request.skeleton.wrap(piece[:0], show, end.reason != "")
		out = ans.writeChunk(out, piece, mine, end)
		ans.prompt = nil // sent in the first chunk
		if end.reason != "" {
			out = ans.writeLast(out)
			e.releaseLeg(st)
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
		e.abort(st) // the scheduler does not know stop strings
	}
}

// clearWriteDeadline removes the write deadline: it belongs to the connection, which may
// serve other requests.
func clearWriteDeadline(control *http.ResponseController) {
	_ = control.SetWriteDeadline(time.Time{})
}

// failStream ends a stream whose engine has stopped: with an error event if the answer has
// begun, else with a status.
func (e *Engine) failStream(w http.ResponseWriter, ans *answer) {
	if ans.sent == 0 {
		writeError(w, e.notServing(errStopped))
		return
	}
	err := &apiError{Message: errEngineStopped.Error(), Type: "InternalServerError", Code: http.StatusInternalServerError}
	fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", err.body())
}

// writeWhole answers with one JSON object when all is generated.
func (e *Engine) writeWhole(w http.ResponseWriter, r *http.Request, st *stream, ans *answer, t *text) {
	var (
		all, ids []model.Token
		show     []byte
		finish   batch.Finish
		end      ending
	)
	for end.reason == "" {
		if err := e.wait(r, st); err != nil {
			if errors.Is(err, errEngineStopped) {
				writeError(w, e.notServing(errStopped))
			}
			return
		}
		ids, finish, ans.cached = st.take(ids)
		if finish == batch.Dropped {
			writeError(w, unavailable(errDropped))
			return
		}
		var mine []model.Token
		mine, end = decodeTokens(t, ans.request, ids, finish)
		all = append(all, mine...)
		show = t.takeAfter(end, show)
	}
	if end.by == byString {
		e.abort(st)
	}
	ans.transfer = st.handoffParams()
	e.releaseLeg(st)
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	defer clearWriteDeadline(control)
	writeJSON(w, http.StatusOK, ans.writeBody(nil, ans.request.skeleton.wrap(nil, show, true), all, end))
	_ = control.Flush() // within the deadline
}
