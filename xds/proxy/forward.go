package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/length"
)

// attemptHeader is length.AttemptHeader in canonical form; refusedHeader likewise.
var (
	attemptHeader = http.CanonicalHeaderKey(length.AttemptHeader)
	refusedHeader = http.CanonicalHeaderKey(length.RefusedHeader)
)

// retryPause is the longest pause before the first repetition; it doubles each time, up to
// maxRetryPause.
const (
	retryPause    = 5 * time.Millisecond
	maxRetryPause = 100 * time.Millisecond
)

var errNoReplica = errors.New("no healthy replica")

// forward sends the request to a replica and its response to the client.
func (x *exchange) forward(addresses []string) {
	s, most := x.stage, int64(x.state.plan.Proxy.MaxRequests)
	if n := s.requests.Add(1); n > most {
		s.requests.Add(-1)
		x.w.Header().Set("X-Envoy-Overloaded", "true")
		x.replyError(503, codeOverload, fmt.Sprintf("Stage %q has %d requests in flight, its limit.", s.name, most))
		return
	}
	s.metrics.active.Inc()
	defer func() {
		s.requests.Add(-1)
		s.metrics.active.Dec()
	}()
	x.openBody()
	x.watchdog.start()
	answer, load, err := x.tryReplicas(addresses)
	if err != nil {
		x.replyUnanswered(err)
		return
	}
	if x.body != nil {
		x.body.commit() // a response has started: it is not repeated from here on
	}
	observeTime(s.metrics.firstByte, time.Since(x.begun), x.span)
	defer load.end(succeeded(answer))
	x.forwardResponse(answer)
}

// succeeded reports whether an answer counts as one in load reports, as Envoy counts them.
func succeeded(answer *http.Response) bool { return answer.StatusCode < 500 }

// tryReplicas tries replicas until one responds: those that were picked in their order, and
// again if they are few.
func (x *exchange) tryReplicas(addresses []string) (*http.Response, *load, error) {
	s := x.stage
	if len(addresses) == 0 {
		return nil, nil, errNoReplica
	}
	for n := 0; ; n++ {
		address := addresses[n%len(addresses)]
		x.upstream = address
		x.attempts++
		l := s.load(address)
		l.begin()
		answer, begun, err := x.p.replicas.get(address, x.state.link).send(x.attempt(address))
		last := begun || n+1 >= balance.MaxAddresses || !x.body.repeatable()
		if err == nil {
			x.p.replicas.failed.clear(address)
			if last || answer.Header[refusedHeader] == nil {
				return answer, l, nil
			}
			answer.Body.Close()
			l.end(succeeded(answer))
			s.metrics.failed("refused answer")
		} else if last = x.recordFailure(l, address, err) || last; last {
			return nil, nil, err
		}
		if err := x.pause(n); err != nil {
			return nil, nil, err
		}
	}
}

// recordFailure counts an attempt without a response. It reports whether the request is over.
func (x *exchange) recordFailure(l *load, address string, err error) (over bool) {
	var f *failure
	if !errors.As(err, &f) {
		l.abandon() // the client left, or a limit of this proxy was reached
		return true
	}
	if x.body.failure() != nil || errors.Is(err, errNotRepeated) {
		l.abandon() // the client broke its body, or it can no longer be sent: no replica is at fault
		return true
	}
	x.stage.metrics.failed(f.kind.String())
	if localfault.Is(err) {
		l.abandon()
		return false
	}
	l.end(false)
	if x.p.replicas.failed.add(address, time.Now()) {
		x.stage.metrics.ejections.Inc()
		x.p.cfg.Logger.Warn("replica passed over: it gave no response", "stage", x.stage.name, "address", address,
			"error", err)
	}
	return false
}

// pause counts a repetition and waits a random time before it.
func (x *exchange) pause(n int) error {
	x.stage.metrics.retries.Inc()
	t := time.NewTimer(rand.N(min(retryPause<<n, maxRetryPause)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
}

// attempt returns the request for one attempt.
func (x *exchange) attempt(address string) *http.Request {
	header := x.header
	if x.attempts > 1 {
		header = header.Clone() // the first attempt may still read it
	}
	header[attemptHeader] = []string{strconv.Itoa(x.attempts)}
	u := x.r.URL
	r := (&http.Request{
		Method: x.r.Method,
		URL: &url.URL{Scheme: "http", Host: address, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery,
			ForceQuery: u.ForceQuery},
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

// replyUnanswered answers a request whose body could not be read, or to which no replica has
// responded. Clients do not see the addresses of replicas, which transport errors contain; the
// log does.
func (x *exchange) replyUnanswered(err error) {
	var f *failure
	name, cause := "", context.Cause(x.ctx)
	if x.stage != nil {
		name = x.stage.name
	}
	x.p.cfg.Logger.Debug("request got no response", "stage", name, "address", x.upstream, "error", err)
	switch {
	case x.clientLeft():
		x.code = statusClientGone // without an answer, which aborts the request
	case errors.Is(cause, errStopping):
		x.replyStopping()
	case errors.Is(cause, errSlowBody), errors.Is(cause, errIdle) && (x.body.pending() || x.body.failure() != nil):
		x.replyError(408, codeTimeout, "The request body did not arrive in time: "+cause.Error()+".")
	case errors.Is(cause, errIdle):
		x.replyError(504, codeTimeout, fmt.Sprintf("Stage %q: %v.", name, cause))
	case x.body.failure() != nil:
		x.replyError(400, codeBadBody, "The request body cannot be read: "+x.body.failure().Error()+".")
	case localfault.Is(err):
		x.replyExhausted()
	case errors.Is(err, errNoReplica):
		x.replyError(503, codeNoUpstream, fmt.Sprintf("Stage %q has no healthy replica.", name))
	case errors.As(err, &f) && f.kind == reset:
		x.replyError(503, codeReset, fmt.Sprintf("A replica of stage %q ended the request without a response.", name))
	case errors.As(err, &f):
		x.replyError(503, codeUnreachable, fmt.Sprintf("Stage %q: %v.", name, f.kind))
	default:
		x.replyError(503, codeUnreachable, fmt.Sprintf("Stage %q cannot be reached.", name))
	}
}

// replyStopping answers that another proxy should serve the request.
func (x *exchange) replyStopping() {
	x.w.Header().Set(length.RefusedHeader, "1")
	x.replyError(503, codeStopping, "This proxy is stopping. Send the request again.")
}

// replyExhausted answers that this proxy has no resources for the request.
func (x *exchange) replyExhausted() {
	x.w.Header().Set("X-Envoy-Overloaded", "true")
	x.replyError(503, codeOverload, "This proxy is out of resources.")
}
