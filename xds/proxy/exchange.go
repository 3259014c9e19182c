package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/endpointpicker"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// exchange is one request. It uses one state from start to end.
type exchange struct {
	p     *Proxy
	state *state
	w     http.ResponseWriter
	r     *http.Request
	begun time.Time

	header   http.Header // for the replica
	size     int64       // content length; -1 unknown
	body     *body       // nil without one
	watchdog *watchdog
	ctx      context.Context

	model   *endpointpicker.Model // nil until it is known
	tokens  policies.Tokens       // the estimated length; -1 unknown
	stage   *stage                // nil until it is chosen
	epoch   []string              // of the plan, as a header
	foreign bool                  // of a page that is not admitted
	code    int                   // status answered
	span    trace.Span            // nil without tracing

	upstream string // address of the last attempt
	attempts int
}

// serve handles one request.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	p.inflight.Add(1)
	p.active.Add(1)
	p.begun.Add(1)
	defer p.inflight.Done()
	defer p.active.Add(-1)
	if p.retiring() {
		w.Header().Set("Connection", "close") // over HTTP/2 this is a GOAWAY
	}
	x := &exchange{p: p, state: p.state.Load(), w: w, r: r, begun: time.Now(), size: r.ContentLength, tokens: -1}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	x.ctx = ctx
	x.watchdog = &watchdog{
		idle: x.state.plan.Proxy.IdleTimeout, begun: x.begun, cancel: cancel, control: http.NewResponseController(w),
		reading: func() bool { return x.body.pending() }, untilLate: func() time.Duration { return x.body.untilLate() },
	}
	metrics := &p.metrics.none
	defer func() {
		x.watchdog.stop()
		if x.body != nil {
			x.body.close()
		}
		x.endSpan()
		metrics.answered(x.code)
		if path := x.state.plan.Proxy.AccessLog; path != "" {
			p.accessLog.write(path, x.accessRecord(time.Now()))
		}
		observeTime(metrics.duration, time.Since(x.begun), x.span)
	}()
	if addresses := x.prepare(); x.stage != nil {
		metrics = &x.stage.metrics
		x.forward(addresses)
	}
}

// prepare chooses the stage of the request and the replicas to try, in order. It leaves the
// stage nil if it has answered the request.
func (x *exchange) prepare() (addresses []string) {
	if x.p.cfg.Admit != nil && x.p.cfg.Admit() != nil {
		if x.r.ProtoMajor == 1 {
			x.w.Header().Set("Connection", "close") // it holds a descriptor
		}
		x.replyExhausted()
		return nil
	}
	x.header = upstreamHeader(x.r)
	x.beginSpan()
	addForwardedHeaders(x.header, x.r)
	if x.refuse(normalizedTarget(x.r)) {
		return nil
	}
	x.model = x.state.view.ByHost(x.r.Host)
	if !x.estimateLength() {
		return nil
	}
	if x.model == nil {
		x.reply(http.StatusNotFound, resources.UnknownModel())
		return nil
	}
	k, addresses := x.model.Stages.Pick(balance.PickRequest{
		Length: x.tokens, Random: rand.Uint64(), Avoid: x.p.replicas.failed.avoided(x.begun),
		LastResort: true,
	})
	x.stage = x.state.stages[stageKey{x.model.Model, k}]
	x.epoch = []string{strconv.FormatUint(uint64(x.state.epochs[x.model.Model]), 10)}
	return addresses
}

// normalizedTarget returns the request's path and query with escaped slashes decoded. The
// replica decodes the rest.
func normalizedTarget(r *http.Request) string {
	t := r.RequestURI
	if !strings.HasPrefix(t, "/") {
		t = r.URL.RequestURI() // of an absolute URI
	}
	path, _, _ := strings.Cut(t, "?")
	if !strings.Contains(path, "%") {
		return t
	}
	return unescapeSlashes.Replace(path) + t[len(path):]
}

var unescapeSlashes = strings.NewReplacer("%2f", "/", "%2F", "/", "%5c", `\`, "%5C", `\`)

// openBody wraps the request's body. x.body stays nil without one.
func (x *exchange) openBody() {
	if x.body == nil && x.r.Body != nil && x.r.Body != http.NoBody && x.size != 0 {
		x.body = newBody(x.r.Body, x.size, x.state.plan.Proxy.BodyLimit, func() { x.watchdog.recordProgress() },
			&x.p.buffers)
	}
}

// clientLeft reports whether the client left, as opposed to a limit or the end of the
// proxy ending the request.
func (x *exchange) clientLeft() bool {
	if x.r.Context().Err() == nil {
		return false
	}
	cause := context.Cause(x.ctx)
	return !errors.Is(cause, errIdle) && !errors.Is(cause, errSlowBody) && !errors.Is(cause, errStopping)
}

// controlHeader reports whether only Cascade or a proxy may set a header, in canonical form.
func controlHeader(name string) bool {
	low := strings.ToLower(name)
	return low == length.ModelHeader || strings.HasPrefix(low, length.ControlPrefix) || strings.HasPrefix(low,
		resources.EnvoyPrefix)
}
