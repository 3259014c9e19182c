package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/route"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// exchange is one request. It uses one state from start to end.
type exchange struct {
	p        *Proxy
	state    *state
	listener *listener
	w        http.ResponseWriter
	r        *http.Request
	begun    time.Time

	header   http.Header // for the upstream
	size     int64       // content length; -1 unknown
	body     *body       // nil without one
	watchdog *watchdog
	ctx      context.Context

	host  *client.VirtualHost
	route *client.Route
	code  int        // status answered
	span  trace.Span // nil without tracing

	upstream string // host:port of the last attempt
	attempts int
}

// serve handles one request of an LDS listener.
func (p *Proxy) serve(name string, w http.ResponseWriter, r *http.Request) {
	p.inflight.Add(1)
	p.active.Add(1)
	p.begun.Add(1)
	defer p.inflight.Done()
	defer p.active.Add(-1)
	if p.retiring() {
		w.Header().Set("Connection", "close") // over HTTP/2 this is a GOAWAY
	}
	s := p.state.Load()
	l := s.listeners[name]
	if l == nil {
		// Removed while this connection was still open.
		w.Header().Set("Connection", "close")
		(&exchange{p: p, w: w, r: r}).replyStopping()
		return
	}
	x := &exchange{p: p, state: s, listener: l, w: w, r: r, begun: time.Now(), size: r.ContentLength}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	x.ctx = ctx
	x.watchdog = &watchdog{idle: l.StreamIdle, begun: x.begun, cancel: cancel, control: http.NewResponseController(w), reading: func() bool { return x.body.pending() },
		untilLate: func() time.Duration { return x.body.untilLate() }}
	metrics := p.metrics.none
	defer func() {
		x.watchdog.stop()
		if x.body != nil {
			x.body.close()
		}
		x.endSpan()
		metrics.answered(x.code)
		if path := x.listener.AccessLog; path != "" {
			p.accessLog.write(path, x.accessRecord(time.Now()))
		}
		observeTime(metrics.duration, time.Since(x.begun), x.span)
	}()
	if c := x.prepare(); c != nil {
		metrics = c.metrics
		x.forward(c)
	}
}

// prepare returns the cluster for the request, or nil after answering it.
func (x *exchange) prepare() *cluster {
	if x.p.cfg.Admit != nil && x.p.cfg.Admit() != nil {
		if x.r.ProtoMajor == 1 {
			x.w.Header().Set("Connection", "close") // it holds a descriptor
		}
		x.replyExhausted()
		return nil
	}
	x.header = upstreamHeader(x.r, x.listener.Listener)
	x.beginSpan()
	if x.listener.table != nil {
		x.host = x.listener.table.Host(x.authority())
	}
	if x.host == nil {
		x.replyError(404, codeNoHost, fmt.Sprintf("No virtual host of route table %q serves the host %q.", x.listener.RouteTable, x.r.Host))
		return nil
	}
	x.pickRoute()
	if !x.runFilters() {
		return nil
	}
	if x.route == nil {
		x.replyError(404, codeNoRoute, fmt.Sprintf("No route of virtual host %q matches the request.", x.host.Name))
		return nil
	}
	addForwardedHeaders(x.header, x.r, x.listener.Listener)
	if d := x.route.Direct; d != nil {
		h := x.w.Header()
		if len(d.Body) > 0 {
			h.Set("Content-Type", "text/plain")
		}
		x.mutateResponse(h, "")
		x.replyLocal(d.Status, d.Body)
		return nil
	}
	c := x.state.clusters[x.route.Cluster]
	if c == nil {
		x.replyError(x.route.NotFound, codeNoCluster, fmt.Sprintf("Cluster %q of route %q is unknown or still waits for its endpoints.", x.route.Cluster, x.route.Name))
		return nil
	}
	return c
}

// runFilters runs the listener's ECDS filters. It returns false if it has answered the
// request.
func (x *exchange) runFilters() bool {
	for i := range x.listener.ECDSFilters {
		slot := &x.listener.ECDSFilters[i]
		if x.route != nil && slices.Contains(x.route.DisabledFilters, slot.Name) {
			continue
		}
		e := x.state.extensions[slot.Name]
		if e == nil {
			e = slot.Default
		}
		if e == nil {
			x.replyError(500, codeNoFilter, fmt.Sprintf("The filter %q has no configuration and no default.", slot.Name))
			return false
		}
		if slot.Name == resources.LengthFilter && len(x.host.Models) > 0 {
			if !x.estimateLength() {
				return false
			}
			x.pickRoute()
		}
		// As in Envoy, this filter runs too late to change the route.
		mutate(x.header, &e.Mutations, client.FormatContext{})
	}
	return true
}

// pickRoute selects the route by the present headers.
func (x *exchange) pickRoute() {
	t := target(x.r)
	path, _, _ := strings.Cut(t, "?")
	if x.listener.UnescapeSlashes && strings.Contains(path, "%") {
		query := t[len(path):]
		path = unescapeSlashes.Replace(path)
		t = path + query
	}
	x.route = route.Pick(x.host, &route.Request{Method: x.r.Method, Authority: x.authority(), Path: path, Target: t, Header: x.header})
}

// unescapeSlashes decodes escaped slashes of a path. The replica decodes the rest.
var unescapeSlashes = strings.NewReplacer("%2f", "/", "%2F", "/", "%5c", `\`, "%5C", `\`)

func (x *exchange) authority() string {
	if x.listener.StripPort {
		return route.WithoutPort(x.r.Host)
	}
	return x.r.Host
}

// target returns the request's path and query unchanged; of an absolute URI, only these.
func target(r *http.Request) string {
	if strings.HasPrefix(r.RequestURI, "/") {
		return r.RequestURI
	}
	return r.URL.RequestURI()
}

// bufferLimit returns how much of the request's body may be buffered.
func (x *exchange) bufferLimit() int64 {
	if x.route != nil && x.route.BufferLimit >= 0 {
		return x.route.BufferLimit
	}
	return x.listener.BufferLimit
}

// openBody wraps the request's body. x.body stays nil without one.
func (x *exchange) openBody() {
	if x.body == nil && x.r.Body != nil && x.r.Body != http.NoBody && x.size != 0 {
		x.body = newBody(x.r.Body, x.size, x.bufferLimit(), func() { x.watchdog.recordProgress() }, &x.p.buffers)
	}
}

// clientLeft reports whether the client left, as opposed to a limit or the end of the
// proxy ending the request.
func (x *exchange) clientLeft() bool {
	if x.r.Context().Err() == nil {
		return false
	}
	cause := context.Cause(x.ctx)
	return !errors.Is(cause, errIdle) && !errors.Is(cause, errSlowBody) && !errors.Is(cause, errTimeout) && !errors.Is(cause, errDuration) && !errors.Is(cause, errStopping)
}

// mutateResponse changes the headers of a response: the route's operations first, the
// table's last, as Envoy does by default.
func (x *exchange) mutateResponse(h http.Header, upstream string) {
	if x.route == nil {
		return
	}
	c := client.FormatContext{Cluster: x.route.Cluster, Upstream: upstream}
	mutate(h, &x.route.Response, c)
	mutate(h, &x.host.Response, c)
	mutate(h, &x.listener.table.Response, c)
}
