package frontend

import (
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

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/intake"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/localfault"
)

// payload is the body of an engine's request. It is released as soon as the
// engine has brought the first event: a prompt is large and a stream is long.
type payload struct {
	mu     sync.Mutex
	bytes  []byte
	memory *intake.Share // that the bytes are counted in; nil for those of the own streams
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

// send sends a leg request to the own engine, where local is its leg, or to a peer. The
// caller closes the answer's body.
func (srv *Server) send(ctx context.Context, lr *legRequest, local *localLeg) (*http.Response, error) {
	target, transport := srv.engine.JoinPath(lr.endpoint.Path()), http.RoundTripper(srv.local)
	if peer := lr.target.Address; peer != "" {
		target, transport = &url.URL{Scheme: srv.cfg.PeerScheme, Host: peer, Path: lr.endpoint.Path()}, srv.peers
	}
	fields := lr.headers()
	local.setTraceHeader(fields)
	// The transport does not send an empty value. It takes the field as
	// permission to send the request again if an idle connection turns out to be
	// closed.
	fields["X-Idempotency-Key"] = []string{}
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
	}).WithContext(ctx)
	resp, err := transport.RoundTrip(req)
	if err == nil && resent && resp.StatusCode == http.StatusConflict {
		// The first request had arrived: nothing reads the leg that it opened.
		resp.Body.Close()
		return nil, errDuplicateLeg
	}
	return resp, err
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
	target   Target
}

// release frees what a plain answer holds.
func (b openedLeg) release() {
	b.response.Body.Close()
	b.call.cancel()
	if b.local != nil {
		b.local.unregister(false)
	}
}

// recordUsage reports the usage in a plain answer of the own engine to the load
// tracker.
func (b openedLeg) recordUsage(answer []byte) {
	if u, ok := openai.ParseUsage(answer); ok && b.local != nil {
		b.local.setUsage(u)
	}
}

// openLeg sends a client's request where it was placed and waits for the answer to begin.
// A replica that loses the request before that costs only time: the next one gets it,
// errLostEverywhere says that MaxAttempts replicas have lost it.
func (srv *Server) openLeg(ctx context.Context, lr *legRequest) (openedLeg, error) {
	defer lr.body.release()
	var tried []policies.ReplicaID
	var busy *overloadedError // of the own engine
	for {
		b, err := srv.openLegAt(ctx, lr)
		if err == nil || ctx.Err() != nil {
			return b, err
		}
		tried = append(tried, srv.replicaOf(lr.target))
		if found := overloaded(err); found != nil {
			busy = found
		}
		if busy != nil && len(tried) == 2 {
			return b, busy // the fleet is as busy; one more body costs what it lacks
		}
		if len(tried) == session.MaxAttempts {
			return b, fmt.Errorf("%w: %w", errLostEverywhere, err)
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

// errLostEverywhere ends a request that no engine has begun: it may be the one that hangs
// them, and must not get all of them.
var errLostEverywhere = errors.New("several replicas have lost the request")

// nextTarget returns where a request goes that replicas have lost, the last one because of
// err: to the own engine, or to a replica that the Rescuer names. A request with which the
// own engine failed is not sent on from here.
func (srv *Server) nextTarget(lr *legRequest, tried []policies.ReplicaID, err error) (Target, bool) {
	self := srv.cfg.Replica
	switch ownTried := slices.Contains(tried, self); {
	case !ownTried && srv.ready.Load():
		return Target{}, true
	case srv.cfg.Rescuer == nil || ownTried && tried[len(tried)-1] == self && !errors.Is(err, errEngineAway) && !errors.Is(err, errLatePrefix) && overloaded(err) == nil:
		return Target{}, false
	case !ownTried:
		tried = append(slices.Clip(tried), self)
	}
	to, ok := srv.cfg.Rescuer.Rescue(lr.stream.request, tried)
	to = srv.normalize(to)
	return to, ok && to.Address != ""
}

// openLegAt is openLeg for one replica. While it waits, the loss of
// the replica cancels it.
func (srv *Server) openLegAt(parent context.Context, lr *legRequest) (openedLeg, error) {
	ctx, cancel := context.WithCancel(parent)
	b := openedLeg{call: &call{cancel: cancel}, target: lr.target}
	local := lr.target.Address == ""
	if !local {
		lr.notAfter = time.Time{} // it concerns the own engine
	} else {
		admitted, err := srv.admission.admit(lr)
		if err != nil {
			cancel()
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
		return openedLeg{}, b.call.causeOr(err)
	}
	if local {
		srv.pullPrefix(ctx, lr, b.local)
	}
	resp, err := srv.send(ctx, lr, b.local)
	if err != nil {
		if local && parent.Err() == nil && errors.Is(err, syscall.ECONNREFUSED) {
			srv.setReady(false) // the port is closed: no second probe is needed
			srv.evacuate()
		}
		return fail(err)
	}
	if !local && resp.Header.Get(length.RefusedHeader) != "" {
		resp.Body.Close()
		return fail(errors.New("the peer refused the request"))
	}
	b.header = resp.Header
	if !isEventStream(resp) {
		if lr.isLate() {
			resp.Body.Close()
			return fail(errLatePrefix)
		}
		resp.Body = newIdleBody(resp.Body, srv.cfg.IdleTimeout, b.local)
		b.response = resp
		lr.body.release()
		return b, nil
	}
	b.leg = readLeg(resp.Body, b.call, b.local, srv.cfg.IdleTimeout, lr.hangTimeout)
	b.leg.firstText = lr.firstText
	if b.first, err = b.leg.Next(); err == nil && lr.isLate() {
		err = errLatePrefix
	}
	if err != nil {
		return fail(err)
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
		first, err = readToFirstToken(b.leg, b.first, ids)
	}
	s.setOpening("", nil)
	if stop() && err == nil {
		return b.leg, first, nil
	}
	if b.leg != nil {
		b.leg.closeMoved()
	}
	if cause := context.Cause(ctx); cause != nil {
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
func (srv *Server) normalize(t Target) Target {
	if t.Replica == srv.cfg.Replica {
		return Target{}
	}
	return t
}

// replicaOf returns the id of the replica that a target is.
func (srv *Server) replicaOf(t Target) policies.ReplicaID {
	if t.Address == "" {
		return srv.cfg.Replica
	}
	return t.Replica
}
