package frontend

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/internal/publicapi"
	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// relayResponse relays an answer that is not parsed as it is. It reads the
// engine's counts from it and, if learn is true, the template of such answers
// under key. l has the losses of the request.
func (srv *Server) relayResponse(w http.ResponseWriter, b openedLeg, l losses, key templateKey, learn bool) {
	defer b.release()
	if b.local != nil {
		b.local.work.AddOutput(0)
		if b.response.StatusCode == http.StatusOK {
			srv.brought.Add(1) // a refusal comes from the engine's HTTP server, which also works when the core hangs
		}
	}
	copyToClient(w, b.header)
	if size := b.response.Header.Get("Content-Length"); size != "" {
		w.Header().Set("Content-Length", size)
	}
	if b.local != nil && srv.answersDead(b.response.StatusCode) {
		l.here++ // this request may be why
		l.mark(w.Header())
	}
	w.WriteHeader(b.response.StatusCode)
	seen, out := b.keepAnswer(), flushWriter{w, http.NewResponseController(w)}
	out.control.Flush()
	if _, err := io.Copy(out, b.response.Body); err != nil {
		// The announced length is not reached, so the client sees that the answer
		// was cut.
		panic(http.ErrAbortHandler)
	}
	if whole := seen.whole(); learn && whole != nil && b.local != nil {
		if err := srv.templates.learn(key, b.response.Header.Get("Content-Type"), whole); err != nil {
			srv.log.Warn("unstreamed answers cannot be assembled from streams; their requests cannot migrate", "endpoint", key.endpoint.Path(), "reason", err)
		}
	}
}

// answersDead reports whether a status of the own engine means that it is unavailable: by RFC 9110, section 15.6.4, or
// because its core has died. Then its HTTP server answers 500 to all requests that it has, and its health check fails.
func (srv *Server) answersDead(status int) bool {
	if status != http.StatusInternalServerError {
		return status == http.StatusServiceUnavailable
	}
	ctx, cancel := context.WithTimeout(context.Background(), srv.cfg.HealthTimeout)
	defer cancel()
	err := srv.askHealth(ctx)
	return err != nil && !localfault.Is(err)
}

// flushWriter sends what is written to it at once.
type flushWriter struct {
	w       io.Writer
	control *http.ResponseController
}

func (f flushWriter) Write(b []byte) (n int, err error) {
	if n, err = f.w.Write(b); err == nil {
		err = f.control.Flush()
	}
	return n, err
}

// prefixBuffer keeps the first bytes that are written to it and discards the
// rest.
type prefixBuffer struct {
	buf  bytes.Buffer
	room int
}

// whole returns what was written, nil if some of it was discarded or there was nothing.
func (l *prefixBuffer) whole() []byte {
	if l == nil || l.room <= 0 {
		return nil
	}
	return l.buf.Bytes()
}

func (l *prefixBuffer) Write(b []byte) (int, error) {
	n := min(len(b), l.room)
	l.buf.Write(b[:n])
	l.room -= n
	return len(b), nil
}

// passJSON returns the handler of requests with a JSON body, or without a body, that pass on
// to the engine, except for what is withheld from engines.
//
// Engines accept as JSON what is not valid JSON (NaN, a byte order mark, UTF-16), whatever
// Content-Type says. A body that cannot be parsed here may hold a withheld field, so it is
// refused.
func (srv *Server) passJSON(e publicapi.Endpoint) handler {
	return func(w http.ResponseWriter, r *http.Request, body []byte, memory *httpserver.Share) {
		req := openai.Request{Choices: 1}
		if len(body) > 0 {
			var err error
			if req, err = srv.parseRequest(srv.dialect(), openai.Completions, body); err != nil {
				writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body is " + err.Error()})
				return
			}
			if !memory.Resize(2 * int64(cap(body))) { // for a copy without the withheld fields
				refuseForMemory(w)
				return
			}
			body = req.PlainBody()
		}
		switch {
		case e.Text:
			srv.passText(w, r, body)
		case e.Computed:
			output := req.MaxOutput
			switch {
			case !e.Generates:
				output = 1
			case e.Path == "/v1/responses":
				output = req.ResponseOutput
			}
			srv.passWork(w, r, body, srv.estimateArrival(r.Header, &req, body), output)
		default:
			srv.pass(w, r, body, memory)
		}
	}
}

// passForm passes a request whose body is a form to the engine, except for what is
// withheld from engines.
func (srv *Server) passForm(w http.ResponseWriter, r *http.Request, body []byte, memory *httpserver.Share) {
	if !memory.Resize(2*int64(cap(body)) + 1<<10) { // for the form that is written anew
		refuseForMemory(w)
		return
	}
	kind, form, err := srv.dialect().Capabilities().Fields.PlainForm(r.Header.Get("Content-Type"), body)
	if err != nil {
		writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body is " + err.Error()})
		return
	}
	r.Header.Set("Content-Type", kind)
	srv.passWork(w, r, form, loadtracker.Arrival{}, 0) // how many tokens a recording has is not known
}

// pass passes a request to the engine that its core does not compute: the answer begins at
// once, or the engine does not serve.
func (srv *Server) pass(w http.ResponseWriter, r *http.Request, body []byte, _ *httpserver.Share) {
	srv.passUncounted(w, r, body, func() {})
}

// passUncounted is pass, and calls begun when the answer begins.
func (srv *Server) passUncounted(w http.ResponseWriter, r *http.Request, body []byte, begun func()) {
	ctx, l := newCall(r.Context())
	defer l.cancel()
	late := time.AfterFunc(srv.cfg.HangTimeout, func() { l.abort(errIdle) })
	defer late.Stop()
	srv.passCall(ctx, w, r, body, l, nil, func() {
		late.Stop()
		begun()
	})
}

// passWork passes a request to the engine that its core computes: it is a part of the
// replica's load, and of the work by which the engine's progress is judged. maxOutput is how many tokens each of
// its sequences generates at most, 0 if that is not known.
func (srv *Server) passWork(w http.ResponseWriter, r *http.Request, body []byte, arrival loadtracker.Arrival, maxOutput policies.Tokens) {
	ctx, l := newCall(r.Context())
	defer l.cancel()
	lr := &legRequest{header: r.Header, frontEnd: srv.cfg.Replica, body: &payload{bytes: body}, plain: true, passed: true, arrival: arrival, tenant: srv.admission.tenantOf(r.Header)}
	lr.request.MaxOutput = maxOutput
	admitted, err := srv.admission.admit(lr)
	if err != nil {
		srv.refuseEngineFailure(w, srv.requestLog(r.Header), err, losses{})
		return
	}
	local := srv.registerLeg(lr, l, admitted)
	defer local.unregister(false)
	srv.passCall(ctx, w, r, body, l, local, func() {})
}

// passCall passes a request to the engine and relays the answer. local is its leg if it counts
// as work, else nil; begun is called when the answer begins.
func (srv *Server) passCall(ctx context.Context, w http.ResponseWriter, r *http.Request, body []byte, l *call, local *localLeg, begun func()) {
	lost := readLosses(w, r.Header)
	l.onBegin = lost.announceLast()
	target := srv.engine.JoinPath(r.URL.EscapedPath())
	target.RawQuery = r.URL.RawQuery
	req, err := http.NewRequestWithContext(l.withBegin(ctx), r.Method, target.String(), bytes.NewReader(body))
	var resp *http.Response
	if err == nil {
		req.Header = engineHeaders(r.Header)
		setRequestID(req.Header)
		resp, err = srv.local.RoundTrip(req)
	}
	switch {
	case err != nil && r.Context().Err() != nil: // see answerUnanswered
	case err != nil:
		if !localfault.Is(err) {
			srv.probeNow()
		}
		err = l.failure(err)
		lost.note(err)
		srv.refuseEngineFailure(w, srv.requestLog(r.Header), err, lost)
	default:
		begun()
		srv.service.addStatus(resp.StatusCode)
		resp.Body = newIdleBody(resp.Body, srv.cfg.IdleTimeout, l, local)
		srv.relayResponse(w, openedLeg{header: resp.Header, response: resp, local: local, call: l, passed: true}, lost, templateKey{}, false)
	}
}

// Bounds of the calls for which the engine's HTTP server tokenizes or renders text. A megabyte takes it about a
// second, and several megabytes of memory, while it serves all streams.
const (
	maxText        = 4 << 20 // bytes of a body
	maxTextCalls   = 8       // that the engine works on at once; half as many from one tenant
	maxTenantCalls = 32      // of one tenant, from their arrival until their answer has been read
	maxTextWait    = time.Second
)

// textCalls bounds the calls for which the engine's HTTP server tokenizes or renders text.
type textCalls struct {
	slots     chan struct{}
	perTenant int

	mu      sync.Mutex
	tenants map[string]*tenantCalls // those that have calls
}

type tenantCalls struct {
	slots chan struct{}
	calls int
}

// newTextCalls returns the bounds of a server. byTenant says that requests name their tenant; else all are of one.
func newTextCalls(byTenant bool) *textCalls {
	c := &textCalls{slots: make(chan struct{}, maxTextCalls), perTenant: maxTextCalls, tenants: make(map[string]*tenantCalls)}
	if byTenant {
		c.perTenant /= 2
	}
	return c
}

// enter waits until the engine may get a tenant's call, and returns false if there are too many calls. The caller
// calls answered when the answer begins, and leave when it ends.
func (c *textCalls) enter(ctx context.Context, tenant string) (answered, leave func(), ok bool) {
	c.mu.Lock()
	t := c.tenants[tenant]
	if t == nil {
		t = &tenantCalls{slots: make(chan struct{}, c.perTenant)}
		c.tenants[tenant] = t
	}
	if t.calls == maxTenantCalls {
		c.mu.Unlock()
		return nil, nil, false
	}
	t.calls++
	c.mu.Unlock()

	var taken []chan struct{}
	answered = sync.OnceFunc(func() {
		for _, slots := range taken {
			<-slots
		}
	})
	leave = func() {
		answered()
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.calls--; t.calls == 0 {
			delete(c.tenants, tenant)
		}
	}
	late := time.NewTimer(maxTextWait)
	defer late.Stop()
	for _, slots := range []chan struct{}{t.slots, c.slots} {
		select {
		case slots <- struct{}{}:
			taken = append(taken, slots)
			continue
		case <-ctx.Done():
		case <-late.C:
		}
		leave()
		return nil, nil, false
	}
	return answered, leave, true
}

// passText passes a call to the engine, within the bounds of textCalls.
func (srv *Server) passText(w http.ResponseWriter, r *http.Request, body []byte) {
	if len(body) > maxText {
		writeProblem(w, openai.Problem{Status: http.StatusRequestEntityTooLarge, Message: "the request body has more than " + strconv.Itoa(maxText) + " bytes, which is the limit of this path"})
		return
	}
	answered, leave, ok := srv.textCalls.enter(r.Context(), srv.admission.tenantOf(r.Header))
	if !ok {
		writeProblem(w, openai.Problem{Status: http.StatusTooManyRequests, Kind: "RateLimitError", RetryAfter: 1, Message: "too many calls that tokenize or render text are in progress; send it again after 1 s"})
		return
	}
	defer leave()
	srv.passUncounted(w, r, body, answered)
}
