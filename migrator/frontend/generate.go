package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// generate serves a client's request on one of the two generating endpoints.
func (f *Server) generate(w http.ResponseWriter, r *http.Request, e openai.Endpoint) {
	body, ok := f.body(w, r)
	if !ok {
		return
	}
	req, err := openai.Parse(e, body)
	if err != nil {
		writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body is " + err.Error()})
		return
	}
	arrival := f.estimate(r.Header, body)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()

	key := shapeKey{e, req.IDs}
	shape := f.shapes.get(key)
	var p *payload
	var out sink
	switch {
	case req.Streamable():
		p = &payload{bytes: req.Streamed()}
		out = newEvents(w, req)
	case req.Assemblable() && shape != nil:
		p = &payload{bytes: req.Streamed()}
		out = &assembly{w: w, shape: shape, ids: req.IDs}
	default:
		p = &payload{bytes: req.Plain()}
	}
	words := policies.Request{Model: req.Model, Input: arrival.Estimate, MaxOutput: req.MaxOutput, Estimated: true, Features: req.Features}
	assemblable := req.Assemblable()
	asked := openai.Edit{NoIDs: !req.IDs, NoUsage: !req.Usage && req.CountsUsage()}
	s := f.newStream(ctx, words, e, asked, out, cancel)
	s.header, s.least = r.Header, req.MinOutput
	if s.resume, ok = req.Resume(); !ok {
		s.request.Features |= policies.Unreadable
	}
	req, body = openai.Request{}, nil // the payload is all that is still needed of it

	o := &legRequest{endpoint: e, header: r.Header, body: p, arrival: arrival, front: f.cfg.Replica, stream: s,
		request: s.request, minTokens: s.least, epoch: 1, hangTimeout: s.hang(), plain: out == nil}
	if f.cfg.Placer != nil {
		o.to = f.normalize(f.cfg.Placer.Place(s.request))
	}
	f.mu.Lock()
	f.streams[s.id] = s
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.streams, s.id)
		f.mu.Unlock()
	}()
	b, err := f.openLeg(ctx, o)
	switch {
	case err != nil && r.Context().Err() != nil: // nobody is there to be told
	case err != nil:
		f.refuseFailed(w, err)
	case b.leg == nil:
		f.relay(w, b, key, assemblable && shape == nil)
	case out == nil:
		// The engine streams what was not known to be a stream.
		f.relayEvents(w, b)
	default:
		f.run(s, b)
	}
}

// refuseFailed answers a request of which the engine produced nothing.
func (f *Server) refuseFailed(w http.ResponseWriter, err error) {
	var bad *malformed
	if errors.As(err, &bad) || errors.Is(err, openai.ErrEventTooLarge) {
		f.log.Error("the engine's answer is malformed", "error", err)
		writeProblem(w, engineLostProblem(err))
		return
	}
	f.log.Warn("the engine does not answer", "error", err)
	refuse(w, "the replica's engine does not answer; send the request to another one")
}

// body reads a request's body. When it cannot, it has answered.
func (f *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	tooLarge := openai.Problem{Status: http.StatusRequestEntityTooLarge,
		Message: "the request body has more than " + strconv.FormatInt(f.cfg.MaxBody, 10) + " bytes"}
	if r.ContentLength > f.cfg.MaxBody {
		w.Header().Set("Connection", "close")
		writeProblem(w, tooLarge)
		return nil, false
	}
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Now().Add(f.cfg.BodyTimeout)) // not every server can; then its own deadline holds
	defer control.SetReadDeadline(time.Time{})
	b, err := readAll(http.MaxBytesReader(w, r.Body, f.cfg.MaxBody), r.ContentLength)
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return b, true
	case errors.As(err, &large):
		w.Header().Set("Connection", "close")
		writeProblem(w, tooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		writeProblem(w, openai.Problem{Status: http.StatusRequestTimeout, Message: fmt.Sprintf("the request body did not arrive within %v", f.cfg.BodyTimeout)})
	default:
		writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body was cut: " + err.Error()})
	}
	return nil, false
}

// readAll reads a body of a stated size, -1 for unknown. It trusts the
// statement only as far as bytes come.
func readAll(src io.Reader, size int64) ([]byte, error) {
	const atOnce = 1 << 20
	b := make([]byte, 0, min(max(size, 512), atOnce)+1) // one more than the size, to see the end
	for {
		n, err := src.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, err
		case len(b) == cap(b):
			grown := make([]byte, len(b), 2*cap(b))
			copy(grown, b)
			b = grown
		}
	}
}

// estimate estimates a request before its engine counts it: by the header that
// it was routed by, else by its bytes.
func (f *Server) estimate(h http.Header, body []byte) loadtracker.Arrival {
	var scan length.Scanner
	scan.Write(body)
	count := scan.Count()
	var a loadtracker.Arrival
	if count.Found && count.Tokens == 0 && count.Media == 0 {
		a.Text = count.Text
	}
	if n, err := strconv.ParseInt(h.Get(length.TokensHeader), 10, 64); err == nil && n > 0 {
		// Anyone may have written it: it counts as far as the body can hold.
		a.Stated = policies.Tokens(min(n, maxPerByte*int64(len(body))))
	}
	a.Estimate = a.Stated
	if count.Tokens > 0 || a.Estimate == 0 {
		a.Estimate = f.tracker.Estimator().FromBody(count)
	}
	if a.Stated == 0 {
		// Nobody stated an estimate: the request was routed by its size.
		a.Stated = f.tracker.Estimator().FromContentLength(int64(len(body)))
	}
	return a
}

// run relays a stream that has begun, to its end.
func (f *Server) run(s *Stream, b openedLeg) {
	s.start(b, &f.fingerprint)
	if err := s.pump(b.leg, b.first); err != nil {
		f.log.Warn("a stream ended early", "stream", s.id, "error", err)
		if s.holding().Replica == f.cfg.Replica {
			f.probeNow()
		}
	}
}
