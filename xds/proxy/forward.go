package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/localfault"
	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/balance"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/upstream"
)

// forward sends the request to the cluster and its response to the client.
func (x *exchange) forward(c *cluster) {
	view := c.view.Load()
	if n := c.requests.Add(1); n > int64(view.MaxRequests) {
		c.requests.Add(-1)
		x.w.Header().Set("X-Envoy-Overloaded", "true")
		x.replyError(503, codeOverload, fmt.Sprintf("Cluster %q has %d requests in flight, its limit.", c.name, view.MaxRequests))
		return
	}
	c.metrics.active.Inc()
	defer func() {
		c.requests.Add(-1)
		c.metrics.active.Dec()
	}()
	x.watchdog.stop() // of the body's arrival, if it had to be read
	x.watchdog = x.watchdog.forUpstream(x.route, x.listener.StreamIdle)
	x.openBody()
	x.watchdog.start()
	answer, host, err := x.tryHosts(c, view)
	if err != nil {
		x.replyUnanswered(c, host, err)
		return
	}
	if x.body != nil {
		x.body.commit() // a response has started: no retry from here on
	}
	observeTime(c.metrics.firstByte, time.Since(x.begun), x.span)
	defer host.Load.End(succeeded(answer))
	x.forwardResponse(answer, host)
}

// succeeded reports whether an answer counts as one in load reports, as Envoy counts them.
func succeeded(answer *http.Response) bool { return answer.StatusCode < 500 }

// forUpstream returns a watchdog for the upstream part of the request.
func (w *watchdog) forUpstream(r *client.Route, idle time.Duration) *watchdog {
	if r.IdleTimeout >= 0 {
		idle = r.IdleTimeout
	}
	out := &watchdog{idle: idle, timeout: r.Timeout, duration: r.MaxDuration, begun: w.begun, cancel: w.cancel, control: w.control, reading: w.reading, untilLate: w.untilLate}
	out.recordProgress()
	return out
}

var (
	errNoHost  = errors.New("no healthy upstream")
	errRetries = errors.New("the retry limit is reached")
)

// tryHosts tries hosts until one responds. The returned host is the last one tried.
func (x *exchange) tryHosts(c *cluster, view *clusterView) (*http.Response, *balance.Host, error) {
	tried := balance.Attempts{Key: x.key()}
	var last *balance.Host
	for n := 0; ; n++ {
		host := c.balancer.Pick(time.Now(), &tried, x.route.Retry)
		if host == nil {
			return nil, last, errNoHost
		}
		last, x.upstream = host, host.Address
		x.attempts++
		host.Load.Begin()
		answer, err := x.p.pool(view, host).RoundTrip(x.upstreamRequest(host))
		if err == nil {
			if c.balancer.ReportStatus(time.Now(), host, answer.StatusCode) {
				x.logEjection(c, host)
			}
			if !x.refusedByReplica(answer) || n >= x.route.Retry.Retries {
				return answer, host, nil
			}
			answer.Body.Close()
			host.Load.End(succeeded(answer))
			c.metrics.failed("refused answer")
			tried.Add(host)
			if err := x.waitBeforeRetry(c, view, n); err != nil {
				return nil, host, err
			}
			continue
		}
		var failure *upstream.Error
		if !errors.As(err, &failure) {
			// The client left, or a limit of this proxy was reached. Only a timeout counts against
			// the host.
			if !errors.Is(err, errTimeout) {
				host.Load.Abandon()
				return nil, host, err
			}
			host.Load.End(false)
			if c.balancer.ReportFailure(time.Now(), host) {
				x.logEjection(c, host)
			}
			return nil, host, err
		}
		c.metrics.failed(failure.Kind.String())
		if localfault.Is(err) {
			host.Load.Abandon()
		} else {
			host.Load.End(false)
			if c.balancer.ReportFailure(time.Now(), host) {
				x.logEjection(c, host)
			}
		}
		if !x.retriable(failure.Kind) || n >= x.route.Retry.Retries {
			return nil, host, err
		}
		tried.Add(host)
		if err := x.waitBeforeRetry(c, view, n); err != nil {
			return nil, host, err
		}
	}
}

// key returns the request's key in clusters that choose by one, "" without one.
func (x *exchange) key() string {
	if x.route.HashHeader == "" {
		return ""
	}
	return strings.Join(x.header[x.route.HashHeader], ",")
}

// retriable reports whether the route retries a failure and the body can be resent.
func (x *exchange) retriable(k upstream.Kind) bool {
	p := x.route.Retry
	if p == nil {
		return false
	}
	ok := k == upstream.NotConnected && p.ConnectFailure || k == upstream.Refused && p.RefusedStream || k == upstream.BeforeRequest && p.ResetBeforeRequest || k == upstream.Reset && p.Reset
	return ok && x.body.repeatable()
}

// refusedByReplica reports whether the route retries a response on another host and the
// body can be resent.
func (x *exchange) refusedByReplica(answer *http.Response) bool {
	p := x.route.Retry
	if p == nil || !x.body.repeatable() {
		return false
	}
	for _, name := range p.Headers {
		if answer.Header[name] != nil {
			return true
		}
	}
	return false
}

// waitBeforeRetry counts a retry and waits a random time up to the base interval, which
// doubles each time.
func (x *exchange) waitBeforeRetry(c *cluster, view *clusterView, n int) error {
	if r := c.retries.Add(1); r > int64(view.MaxRetries) {
		c.retries.Add(-1)
		return errRetries
	}
	defer c.retries.Add(-1)
	c.metrics.retries.Inc()
	d := min(x.route.Retry.BaseInterval<<min(n, 16), x.route.Retry.MaxInterval)
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
}

func (x *exchange) logEjection(c *cluster, h *balance.Host) {
	c.metrics.ejections.Inc()
	hosts, out := c.balancer.Size()
	x.p.cfg.Logger.Warn("host ejected", "cluster", c.name, "host", h.Address, "ejected", out, "hosts", hosts)
}

// upstreamRequest returns the upstream request for one attempt.
func (x *exchange) upstreamRequest(h *balance.Host) *http.Request {
	header := x.header
	if !x.route.Request.Empty() || !x.host.Request.Empty() || !x.listener.table.Request.Empty() {
		// Each attempt starts from the client's headers.
		header = header.Clone()
		c := client.FormatContext{Cluster: x.route.Cluster, Upstream: h.Address}
		mutate(header, &x.route.Request, c)
		mutate(header, &x.host.Request, c)
		mutate(header, &x.listener.table.Request, c)
	}
	r := (&http.Request{
		Method: x.r.Method,
		URL:    &url.URL{Scheme: "http", Host: h.Address, Path: x.r.URL.Path, RawPath: x.r.URL.RawPath, RawQuery: x.r.URL.RawQuery, ForceQuery: x.r.URL.ForceQuery},
		Host:   x.r.Host,
		Header: header,
	}).WithContext(x.ctx)
	if x.body != nil {
		r.Body, r.ContentLength = x.body.newReader(), x.size
		if n, known := x.body.size(); known {
			r.ContentLength = n
		}
	}
	return r
}

// replyUnanswered answers a request to which no host has responded. Clients do not see
// the addresses of hosts, which transport errors contain; the log does.
func (x *exchange) replyUnanswered(c *cluster, host *balance.Host, err error) {
	var failure *upstream.Error
	if host != nil {
		x.p.cfg.Logger.Debug("request got no response", "cluster", c.name, "host", host.Address, "error", err)
	}
	switch {
	case x.clientLeft():
		x.code = statusClientGone // without an answer, which aborts the request
	case errors.Is(err, errStopping):
		x.replyStopping()
	case errors.Is(err, errSlowBody), errors.Is(err, errIdle) && (x.body.pending() || x.body.failed()):
		x.replyError(408, codeTimeout, "The request body did not arrive in time: "+err.Error()+".")
	case errors.Is(err, errIdle), errors.Is(err, errTimeout), errors.Is(err, errDuration):
		x.replyError(504, codeTimeout, fmt.Sprintf("Cluster %q: %v.", c.name, err))
	case localfault.Is(err):
		x.replyExhausted()
	case errors.Is(err, errNoHost):
		x.replyError(503, codeNoUpstream, fmt.Sprintf("Cluster %q has no healthy endpoint.", c.name))
	case errors.Is(err, errRetries):
		x.w.Header().Set("X-Envoy-Overloaded", "true")
		x.replyError(503, codeOverload, fmt.Sprintf("Cluster %q: %v.", c.name, err))
	case x.body.failed():
		x.replyError(400, codeBadBody, "The request body ended before its length.")
	case errors.As(err, &failure) && failure.Kind == upstream.Reset:
		x.replyError(503, codeReset, fmt.Sprintf("Cluster %q ended the request without a response.", c.name))
	case errors.As(err, &failure):
		x.replyError(503, codeUnreachable, fmt.Sprintf("Cluster %q: %v.", c.name, failure.Kind))
	default:
		x.replyError(503, codeUnreachable, fmt.Sprintf("Cluster %q cannot be reached.", c.name))
	}
}

// replyStopping answers that another proxy should serve the request.
func (x *exchange) replyStopping() {
	x.w.Header().Set(length.RefusedHeader, "1")
	x.w.Header().Set("Retry-After", "1")
	x.replyError(503, codeStopping, "This proxy is stopping. Send the request again.")
}

// replyExhausted answers that this proxy has no resources for the request.
func (x *exchange) replyExhausted() {
	x.w.Header().Set("X-Envoy-Overloaded", "true")
	x.replyError(503, codeOverload, "This proxy is out of resources.")
}
