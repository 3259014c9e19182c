package frontend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// payload is the body of an engine's request. It is released as soon as the
// engine has brought the first event: a prompt is large and a stream is long.
type payload struct {
	mu     sync.Mutex
	bytes  []byte
	memory *httpserver.Share // that the bytes are counted in; nil for those of the own streams
}

func (p *payload) size() int64 { return int64(len(p.bytes)) }

func (p *payload) newReader() (io.ReadCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes == nil {
		return nil, errors.New("internal error: a request's body is opened after its release")
	}
	return &payloadReader{rest: p.bytes}, nil
}

// dropIDs removes the request for token ids from the body.
func (p *payload) dropIDs(fields *openai.Fields) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes = fields.DropIDs(p.bytes)
}

func (p *payload) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes = nil
	if p.memory != nil {
		p.memory.Release()
	}
}

// payloadReader reads a payload and releases it at its end.
type payloadReader struct {
	mu   sync.Mutex
	rest []byte
}

func (r *payloadReader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rest) == 0 {
		r.rest = nil
		return 0, io.EOF
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *payloadReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest = nil
	return nil
}

// send sends a leg request to the own engine, where local is its leg, or to a peer, as a call. The
// caller closes the answer's body.
func (srv *Server) send(ctx context.Context, lr *legRequest, l *call, local *localLeg) (*http.Response, error) {
	var path string
	path, lr.translate = srv.dialect().Open(lr.endpoint, lr.body.bytes)
	target, transport := srv.engine.JoinPath(path), http.RoundTripper(srv.local)
	if peer := lr.target.Address; peer != "" {
		target, transport = &url.URL{Scheme: srv.cfg.PeerScheme, Host: peer, Path: lr.endpoint.Path()}, srv.peers
	}
	fields := lr.headers()
	local.setTraceHeader(fields)
	if !lr.transfers() && lr.reservation == "" {
		// The transport does not send an empty value. It takes the field as
		// permission to send the request again if an idle connection turns out to be
		// closed. A leg that transfers KV has none: the holder may have freed its blocks
		// by then, and an engine decodes from what it finds there.
		fields["X-Idempotency-Key"] = []string{}
	}
	body, err := lr.body.newReader()
	if err != nil {
		return nil, err
	}
	resent := false // set on the goroutine that calls RoundTrip
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           target,
		Header:        fields,
		Body:          body,
		GetBody:       func() (io.ReadCloser, error) { resent = true; return lr.body.newReader() },
		ContentLength: lr.body.size(),
	}).WithContext(l.withBegin(ctx))
	resp, err := transport.RoundTrip(req)
	if err == nil && resent && resp.StatusCode == http.StatusConflict {
		// The first request had arrived: nothing reads the leg that it opened.
		resp.Body.Close()
		return nil, errDuplicateLeg
	}
	return resp, err
}

// sendWithoutIDs returns resp, unless the engine refuses in it to return token ids: then it sends the leg request again
// without asking for them.
func (srv *Server) sendWithoutIDs(ctx context.Context, lr *legRequest, l *call, local *localLeg, resp *http.Response) (*http.Response, error) {
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	excerpt, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	fields := srv.dialect().Capabilities().Fields
	if err != nil || !fields.RefusesIDs(resp.StatusCode, excerpt) {
		resp.Body = readCloser{io.MultiReader(bytes.NewReader(excerpt), resp.Body), resp.Body}
		return resp, nil
	}
	resp.Body.Close()
	lr.asksIDs = false
	lr.body.dropIDs(fields)
	resp, err = srv.send(ctx, lr, l, local)
	// An error that quotes the request proves nothing: the engine must take it without the field.
	if err == nil && resp.StatusCode == http.StatusOK && local != nil {
		local.idsHidden.Store(true)
		if srv.engineFacts.noteRefusesIDs(lr.endpoint) {
			srv.log.Warn("engine refuses "+fields.IDs+"; its answers there cannot move to other replicas", "path", lr.endpoint.Path(), "refusal", string(excerpt))
		}
	}
	return resp, err
}

// maxRefusal is how many bytes of an engine's refusal are read.
const maxRefusal = 4 << 10

type readCloser struct {
	io.Reader
	io.Closer
}

// errDuplicateLeg is the loss of a request, not an error of its client.
var errDuplicateLeg = errors.New("the engine lost the connection of a request that it had begun")

// isEventStream reports whether an answer is a stream of events.
func isEventStream(resp *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return resp.StatusCode == http.StatusOK && kind == "text/event-stream"
}

// openedLeg is an answer that has begun: a leg with its first chunk, or an answer
// that is not a stream and goes to the client as it is.
type openedLeg struct {
	header   http.Header
	leg      *wireLeg
	first    *openai.Chunk
	response *http.Response
	local    *localLeg // at the own engine, else nil
	call     *call
	target   policies.Target
	passed   bool // the request was passed through unparsed
}

// release frees what a plain answer holds.
func (b openedLeg) release() {
	b.response.Body.Close()
	b.call.cancel()
	if b.local != nil {
		b.local.unregister(false)
	}
}

// keepAnswer returns a buffer that keeps a plain answer while it is read, for its usage and its template; nil for an
// answer with another status than 200, or to a request that is passed through.
func (b openedLeg) keepAnswer() *prefixBuffer {
	if b.response.StatusCode != http.StatusOK || b.passed {
		return nil
	}
	seen := &prefixBuffer{room: maxInspected}
	b.response.Body.(*idleBody).seen = seen
	return seen
}

// openLeg sends a client's request where it was placed and waits for the answer to begin.
// A replica that loses the request before that costs only time: the next one gets it, until
// session.MaxLosses engines have lost it, or session.MaxAttempts replicas have not begun it.
func (srv *Server) openLeg(ctx context.Context, lr *legRequest) (openedLeg, error) {
	defer lr.body.release()
	var tried []policies.ReplicaID
	var busy *overloadedError // of the own engine
	if lr.losses.exhausted() {
		return openedLeg{}, errPrefillLost
	}
	for {
		b, err := srv.openLegAt(ctx, lr)
		if err == nil || ctx.Err() != nil {
			return b, err
		}
		tried = append(tried, srv.replicaOf(lr.target))
		lr.losses.note(err)
		if found := overloaded(err); found != nil {
			busy = found
		}
		if busy != nil && len(tried) == 2 {
			return b, busy // the fleet is as busy; one more body costs what it lacks
		}
		if len(tried) == session.MaxAttempts || lr.losses.exhausted() {
			return b, err
		}
		next, ok := srv.nextTarget(lr, tried, err)
		if !ok {
			return b, err
		}
		level := slog.LevelWarn
		if overloaded(err) != nil {
			level = slog.LevelDebug
		}
		srv.requestLog(lr.header).Log(ctx, level, "request not begun; sending it to another replica", "request", lr.request.ID, "from", tried[len(tried)-1], "to", srv.replicaOf(next), "error", err)
		lr.target = next
	}
}

var errPrefillLost = errors.New("the prefill replica has lost the request")

// nextTarget returns where a request goes that replicas have lost, the last one because of
// err: to the own engine, or to a replica that the Rescuer names. A request with which the
// own engine failed is not sent on from here.
func (srv *Server) nextTarget(lr *legRequest, tried []policies.ReplicaID, err error) (policies.Target, bool) {
	self := srv.cfg.Replica
	switch ownTried := slices.Contains(tried, self); {
	case !ownTried && srv.ready.Load():
		return policies.Target{}, true
	case srv.cfg.Rescuer == nil || ownTried && tried[len(tried)-1] == self && !errors.Is(err, errEngineAway) && !errors.Is(err, errLatePrefix) && overloaded(err) == nil:
		return policies.Target{}, false
	case !ownTried:
		tried = append(slices.Clip(tried), self)
	}
	to, ok := srv.cfg.Rescuer.Rescue(lr.stream.cfg.Request, tried)
	to = srv.normalize(to)
	return to, ok && to.Address != ""
}

// openLegAt is openLeg for one replica. While it waits, the loss of
// the replica cancels it.
func (srv *Server) openLegAt(parent context.Context, lr *legRequest) (openedLeg, error) {
	ctx, c := newCall(parent)
	c.onBegin = lr.losses.announceLast()
	b := openedLeg{call: c, target: lr.target}
	local := lr.target.Address == ""
	if !local {
		lr.notAfter = time.Time{} // it concerns the own engine
	} else {
		admitted, err := srv.admission.admit(lr)
		if err != nil {
			c.cancel()
			return openedLeg{}, err
		}
		b.local = srv.registerLeg(lr, b.call, admitted)
		b.local.beginSpan(parent, lr)
	}
	if lr.stream != nil {
		lr.stream.setOpening(lr.target.Replica, b.call) // until the stream has the leg or the client its answer
	}
	fail := func(err error) (openedLeg, error) {
		b.call.abort(err) // unless it was aborted: that is the cause
		if lr.stream != nil {
			lr.stream.setOpening("", nil)
		}
		if b.leg != nil {
			b.leg.closeMoved() // what did not begin did not finish
		} else if b.local != nil {
			b.local.unregister(true)
		}
		if local && parent.Err() == nil && !localfault.Is(err) {
			srv.probeNow()
		}
		return openedLeg{}, b.call.failure(err)
	}
	if local {
		srv.pullPrefix(ctx, lr, b.local)
	}
	resp, err := srv.send(ctx, lr, b.call, b.local)
	if err == nil && lr.asksIDs {
		resp, err = srv.sendWithoutIDs(ctx, lr, b.call, b.local, resp)
	}
	if err != nil {
		if local && parent.Err() == nil && errors.Is(err, syscall.ECONNREFUSED) {
			srv.setReady(false) // the port is closed: no second probe is needed
			srv.evacuate()
		}
		return fail(err)
	}
	if refused := resp.Header.Get(length.RefusedHeader); !local && refused != "" {
		resp.Body.Close()
		b.call.begun.Store(refused != length.RefusedUnbegun)
		return fail(errors.New("the peer refused the request"))
	}
	b.header = resp.Header
	if !isEventStream(resp) {
		if lr.isLate() {
			resp.Body.Close()
			return fail(errLatePrefix)
		}
		resp.Body = newIdleBody(resp.Body, srv.cfg.IdleTimeout, c, b.local)
		b.response = resp
		lr.body.release()
		return b, nil
	}
	if local && lr.translate != nil {
		resp.Body = readCloser{lr.translate(resp.Body), resp.Body}
	}
	b.leg = readLeg(resp.Body, b.call, b.local, srv.cfg.IdleTimeout)
	b.leg.firstText = lr.firstText
	if b.first, err = b.leg.next(); err != nil {
		return fail(err)
	}
	if session.ReportsLoss(b.first) {
		return fail(session.ReportedLoss(b.first))
	}
	if lr.isLate() {
		return fail(errLatePrefix)
	}
	lr.body.release()
	return b, nil
}

// openLaterLeg opens a later leg and reads it up to its first token. ctx bounds
// that; the leg then lives as long as the stream. ids is as in readToFirstToken.
func (s *Stream) openLaterLeg(ctx context.Context, lr *legRequest, ids int) (*wireLeg, *openai.Chunk, error) {
	life, cancel := context.WithCancelCause(s.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	b, err := s.server.openLegAt(life, lr)
	if err == nil && b.leg == nil {
		err = refusal(b.response)
		b.release()
	}
	var first *openai.Chunk
	if err == nil {
		if first, err = readToFirstToken(b.leg, b.first, ids); err != nil {
			err = b.call.failure(err)
		}
	}
	s.setOpening("", nil)
	if stop() && err == nil {
		return b.leg, first, nil
	}
	if b.leg != nil {
		b.leg.closeMoved()
	}
	if cause := context.Cause(ctx); cause != nil && isLost(err) {
		err = &lostError{cause}
	} else if cause != nil {
		err = cause // the caller does not wait any more
	}
	cancel(nil)
	return nil, nil, err
}

// refusal returns the error for an answer that is no stream.
func refusal(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxExcerpt))
	return fmt.Errorf("status %s: %s", resp.Status, b)
}

// normalize returns a target as this server reaches it: the own replica has no
// address.
func (srv *Server) normalize(t policies.Target) policies.Target {
	if t.Replica == srv.cfg.Replica {
		return policies.Target{}
	}
	return t
}

// replicaOf returns the id of the replica that a target is.
func (srv *Server) replicaOf(t policies.Target) policies.ReplicaID {
	if t.Address == "" {
		return srv.cfg.Replica
	}
	return t.Replica
}
