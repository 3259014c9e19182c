package frontend

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// serveGenerate serves a client's request on one of the two generating endpoints.
func (srv *Server) serveGenerate(w http.ResponseWriter, r *http.Request, body []byte, memory *httpserver.Share) {
	begun, e := time.Now(), openai.EndpointOf(r.URL.Path)
	d := srv.dialect()
	req, err := srv.parseRequest(d, e, body)
	if err != nil {
		writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body is " + err.Error()})
		return
	}
	if !memory.Resize(2*int64(cap(body)) + 1<<10) { // for the engine's body, which is a copy
		refuseForMemory(w)
		return
	}
	arrival := srv.estimateArrival(r.Header, &req, body)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()

	if !req.WantsIDs && srv.engineFacts.refusesIDs(e) {
		req.WithoutIDs()
	}
	key := templateKey{e, req.WantsIDs}
	template := srv.templates.get(key)
	p := new(payload)
	var out clientWriter // nil: the answer is relayed as it is
	var asked openai.Edit
	if req.Streamable() || req.Assemblable() && template != nil {
		p.bytes = srv.streamBody(ctx, d, &req, r.Header)
		asked = openai.Edit{HideIDs: !req.WantsIDs && req.AllowsIDs(), HideUsage: !req.WantsUsage && req.AllowsUsage()}
		if out = newEventWriter(w, asked); !req.Stream {
			out = &answerWriter{w: w, template: template, ids: req.WantsIDs}
		}
	} else {
		p.bytes = req.PlainBody()
	}
	request := policies.Request{Model: req.Model, Input: arrival.Estimate, MaxOutput: req.MaxOutput, Estimated: true, Features: req.Features,
		Prompts: arrival.Prompts, Sequences: arrival.Sequences}
	assemblable := req.Assemblable()
	resume, ok := req.Resume()
	if !ok {
		request.Features |= policies.Unreadable
	}
	s := srv.newStream(ctx, session.Config{Request: request, MinTokens: req.MinOutput, Endpoint: e, Asked: asked, Resume: resume}, out, cancel)
	s.dialect, s.header, s.requestID, s.begun = d, engineHeaders(r.Header), r.Header.Get(requestIDHeader), begun // what later legs, the log and latencies need
	s.tenant = srv.admission.tenantOf(r.Header)
	nameSpan(ctx, e, s.cfg.Request)
	prompt := srv.readPrompt(ctx, &req, s.header, srv.tokenizer.minKnown(arrival.Estimate))
	s.root, arrival.Cached = prompt.root, prompt.cached
	prompt.refineEstimate(&arrival)
	req, body = openai.Request{}, nil // only the payload is still needed
	p.memory = memory
	memory.Resize(int64(len(p.bytes)))

	lr := &legRequest{endpoint: e, header: r.Header, body: p, arrival: arrival, frontEnd: srv.cfg.Replica, stream: s,
		request: s.cfg.Request, root: prompt.root, minTokens: s.cfg.MinTokens, epoch: 1, tenant: s.tenant, plain: out == nil, asksIDs: asked.HideIDs, prompt: &prompt, losses: readLosses(w, r.Header)}
	lr.target = srv.place(s.cfg.Request, &prompt, lr.plain)
	s.awaitPromptIDs(&prompt, lr.target.Prefill)
	srv.mu.Lock()
	srv.streams[s.id] = s
	srv.mu.Unlock()
	defer func() {
		srv.mu.Lock()
		delete(srv.streams, s.id)
		srv.mu.Unlock()
	}()
	srv.fetchPrefill(ctx, lr)
	b, err := srv.openLeg(ctx, lr)
	switch {
	case err != nil && r.Context().Err() != nil: // see answerUnanswered
	case err != nil:
		srv.refuseEngineFailure(w, s.log(), err, lr.losses)
	case b.leg == nil:
		srv.service.addStatus(b.response.StatusCode)
		srv.relayResponse(w, b, lr.losses, key, assemblable && template == nil)
	default:
		if out == nil { // the engine streams an answer that was not expected to be a stream
			s.client = newEventWriter(w, asked)
		}
		srv.serveStream(r, s, b, lr.losses)
	}
}

// streamBody returns the body that asks the engine for a stream. If the engine streams a chat with token ids only to a
// request for ids, it is asked for them first; a chat whose ids are not learnt cannot move.
func (srv *Server) streamBody(ctx context.Context, d dialect.Dialect, req *openai.Request, header http.Header) []byte {
	if req.Endpoint != openai.Chat || !d.Capabilities().ChatsByIDs {
		return req.StreamBody()
	}
	if q, ok := req.Resume(); ok && d.Continue(&q, dialect.Continuation{IDs: []uint32{0}}) != nil {
		if ids, err := srv.askPromptIDs(ctx, d, req, engineHeaders(header), srv.cfg.MigrationTimeout, true); err == nil && len(ids) > 0 {
			req.LearnPromptIDs(ids)
			return d.Continue(&q, dialect.Continuation{IDs: ids})
		}
	}
	req.WithoutIDs()
	return req.StreamBody()
}

// refuseEngineFailure answers a request for which the engine produced no token, and counts the failure unless a
// peer sent the request. l includes the loss by err.
func (srv *Server) refuseEngineFailure(w http.ResponseWriter, log *slog.Logger, err error, l losses) {
	if busy := overloaded(err); busy != nil {
		if !l.peer {
			srv.turnedAway.Add(1)
		}
		// Proxies do not send it to another replica, and do not count it against this one, which is well.
		writeProblem(w, openai.Problem{Status: http.StatusTooManyRequests, Kind: "RateLimitError", Message: busy.Error(), RetryAfter: busy.Retry})
		return
	}
	if !l.peer {
		srv.service.addFailure()
	}
	var bad *session.MalformedError
	if errors.As(err, &bad) || errors.Is(err, openai.ErrEventTooLarge) {
		log.Error("engine sent a malformed answer", "error", err)
		if l.peer {
			l.mark(w.Header()) // the sender counts it
		}
		writeProblem(w, engineLostProblem(err))
		return
	}
	if l.here > 0 {
		log.Error("engine was lost before it answered the request", "engines_lost", l.here, "attempts_before", l.earlier, "error", err)
		l.mark(w.Header())
		var reported *session.ReportedError
		if errors.As(err, &reported) {
			if status, body := reported.Answer(); body != nil {
				writeJSON(w, status, body)
				return
			}
		}
		writeProblem(w, openai.Problem{Status: http.StatusBadGateway, Kind: "EngineError", Message: "an engine that had the request was lost; send it again later"})
		return
	}
	if localfault.Is(err) {
		log.Warn("request refused: this process ran out of a resource", "error", err)
		refuseRequest(w, "the replica is out of resources; send the request to another one")
		return
	}
	log.Warn("engine did not answer", "error", err)
	refuseRequest(w, "the replica's engine does not answer; send the request to another one")
}

// estimateArrival is estimateLength for a body that it scans. A prompt that repeats a recent one is marked: it
// does not count again for the bytes per token, or one client could decide for all.
func (srv *Server) estimateArrival(h http.Header, req *openai.Request, body []byte) loadtracker.Arrival {
	var scan length.Scanner
	scan.Write(body)
	a := srv.estimateLength(h, scan.Count(), req.Choices, len(body))
	a.Repeated = srv.tracker.NotePrompt(req.Prompt())
	return a
}

// estimateLength estimates the length of a request that its engine has not counted yet: by the header that it
// was routed by, else by what its body of so many bytes has. choices is how many sequences it generates for
// each prompt.
func (srv *Server) estimateLength(h http.Header, count length.Count, choices, body int) loadtracker.Arrival {
	a := loadtracker.Arrival{Prompts: min(max(count.Prompts, 1), loadtracker.MaxSequences)}
	a.Sequences = min(a.Prompts*choices, loadtracker.MaxSequences)
	if count.Prompts > 0 {
		a.Others = srv.tracker.Estimator().FromContentLength(count.OtherText) + count.OtherTokens
	}
	if count.Found && count.Tokens == 0 && count.Media == 0 {
		a.TextBytes = count.Text
	}
	if n, err := strconv.ParseInt(h.Get(length.TokensHeader), 10, 64); err == nil && n > 0 {
		// The header may be forged: it counts as far as the body can hold that
		// many tokens.
		a.RoutedEstimate = policies.Tokens(min(n, maxTokensPerByte*int64(body)))
	}
	a.Estimate = a.RoutedEstimate
	if count.Tokens > 0 || a.Estimate == 0 {
		a.Estimate = srv.tracker.Estimator().FromBody(count)
	}
	if a.RoutedEstimate == 0 {
		// There was no estimate: the request was routed by its size.
		a.RoutedEstimate = srv.tracker.Estimator().FromContentLength(int64(body))
	}
	return a
}

// serveStream relays a stream that has begun, to its end. If its client has left, its
// connection or HTTP/2 stream is cut: a client that has left one direction only must not
// read a regular end.
func (srv *Server) serveStream(r *http.Request, s *Stream, b openedLeg, l losses) {
	first := time.Now()
	err := s.run(b, l)
	s.countInSpan(r.Context())
	s.reportServed(first)
	if cause := context.Cause(r.Context()); cause != nil && !errors.Is(cause, errStopping) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		srv.service.addFailure()
		s.log().Warn("stream ended early", "error", err)
		if s.currentHolder().Replica == srv.cfg.Replica {
			srv.probeNow()
		}
	}
}
