package frontend

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/intake"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/localfault"
)

// serveGenerate serves a client's request on one of the two generating endpoints.
func (srv *Server) serveGenerate(w http.ResponseWriter, r *http.Request, e openai.Endpoint, body []byte, memory *intake.Share) {
	begun := time.Now()
	req, err := openai.Parse(e, body)
	if err != nil {
		writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body is " + err.Error()})
		return
	}
	if !memory.Resize(2*int64(cap(body)) + 1<<10) { // for the engine's body, which is a copy
		refuseForMemory(w)
		return
	}
	arrival := srv.estimateArrival(r.Header, body)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()

	key := templateKey{e, req.WantsIDs}
	template := srv.templates.get(key)
	var p *payload
	var out clientWriter
	switch {
	case req.Streamable():
		p = &payload{bytes: req.StreamBody()}
		out = newEventWriter(w, req)
	case req.Assemblable() && template != nil:
		p = &payload{bytes: req.StreamBody()}
		out = &answerWriter{w: w, template: template, ids: req.WantsIDs}
	default:
		p = &payload{bytes: req.PlainBody()}
	}
	request := policies.Request{Model: req.Model, Input: arrival.Estimate, MaxOutput: req.MaxOutput, Estimated: true, Features: req.Features}
	assemblable := req.Assemblable()
	asked := openai.Edit{HideIDs: !req.WantsIDs && req.AllowsIDs(), HideUsage: !req.WantsUsage && req.AllowsUsage()}
	resume, ok := req.Resume()
	if !ok {
		request.Features |= policies.Unreadable
	}
	s := srv.newStream(ctx, session.Config{Request: request, MinTokens: req.MinOutput, Endpoint: e, Asked: asked, Resume: resume}, out, cancel)
	s.header, s.requestID, s.begun = engineHeaders(r.Header), r.Header.Get(requestIDHeader), begun // what later legs, the log and latencies need
	s.tenant = srv.admission.tenantOf(r.Header)
	nameSpan(ctx, e, s.request)
	prompt := srv.readPrompt(ctx, &req, s.header, srv.tokenizer.minKnown(arrival.Estimate))
	s.root, arrival.Cached = prompt.root, prompt.cached
	prompt.refineEstimate(&arrival)
	req, body = openai.Request{}, nil // only the payload is still needed
	p.memory = memory
	memory.Resize(int64(len(p.bytes)))

	lr := &legRequest{endpoint: e, header: r.Header, body: p, arrival: arrival, frontEnd: srv.cfg.Replica, stream: s,
		request: s.request, root: prompt.root, minTokens: s.minTokens, epoch: 1, tenant: s.tenant, hangTimeout: s.hangTimeout(), plain: out == nil, prompt: &prompt}
	lr.target = srv.place(s.request, &prompt, lr.plain)
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
		if overloaded(err) != nil {
			srv.turnedAway.Add(1)
		}
		srv.refuseEngineFailure(w, s.log(), err)
	case b.leg == nil:
		srv.relayResponse(w, b, key, assemblable && template == nil)
	case out == nil:
		// The engine streams an answer that was not expected to be a stream.
		srv.relayEvents(w, b)
	default:
		srv.serveStream(r, s, b)
	}
}

// refuseEngineFailure answers a request for which the engine produced no token.
func (srv *Server) refuseEngineFailure(w http.ResponseWriter, log *slog.Logger, err error) {
	if busy := overloaded(err); busy != nil {
		refuseOverload(w, busy)
		return
	}
	var bad *session.MalformedError
	if errors.As(err, &bad) || errors.Is(err, openai.ErrEventTooLarge) {
		log.Error("engine sent a malformed answer", "error", err)
		writeProblem(w, engineLostProblem(err))
		return
	}
	if errors.Is(err, errLostEverywhere) {
		log.Error("request not begun: several replicas lost it", "error", err)
		writeProblem(w, openai.Problem{Status: http.StatusBadGateway, Kind: "EngineError", Message: errLostEverywhere.Error() + "; send it again later"})
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

// estimateArrival is estimateLength for a request of a client. It counts how the prompt begins, whether or not
// the proxies give prefix keys: they begin to when a depth for them has been learnt.
func (srv *Server) estimateArrival(h http.Header, body []byte) loadtracker.Arrival {
	var scan length.Scanner
	scan.HashPrefix(length.MaxPrefixDepth)
	scan.Write(body)
	count := scan.Count()
	// Short prompts count as untokenized only while the engine may not be asked: what they share is soon computed
	// once more.
	if count.Tokens == 0 && (srv.cfg.Placer == nil || !srv.tokenizer.mayAsk(int(count.Text))) {
		srv.tracker.ObserveUntokenizedPrefix(scan.PrefixDigests())
	} else {
		srv.tracker.ObservePrefix(scan.PrefixDigests())
	}
	return srv.estimateLength(h, count, len(body))
}

// estimateForwarded is estimateLength for a request that a peer forwards: the peer has counted how its prompt begins.
func (srv *Server) estimateForwarded(h http.Header, body []byte) loadtracker.Arrival {
	var scan length.Scanner
	scan.Write(body)
	return srv.estimateLength(h, scan.Count(), len(body))
}

// estimateLength estimates the length of a request that its engine has not counted yet: by the header that it
// was routed by, else by what its body of so many bytes has.
func (srv *Server) estimateLength(h http.Header, count length.Count, body int) loadtracker.Arrival {
	var a loadtracker.Arrival
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
func (srv *Server) serveStream(r *http.Request, s *Stream, b openedLeg) {
	first := time.Now()
	err := s.run(b)
	s.countInSpan(r.Context())
	s.reportServed(first)
	if cause := context.Cause(r.Context()); cause != nil && !errors.Is(cause, errStopping) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		s.log().Warn("stream ended early", "error", err)
		if s.currentHolder().Replica == srv.cfg.Replica {
			srv.probeNow()
		}
	}
}
