package client

import (
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	prioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
)

// Envoy's defaults of a retry policy.
const (
	defaultRetries      = 1
	defaultHostAttempts = 1
	defaultRetryBase    = 25 * time.Millisecond
	retryMaxFactor      = 10 // the longest pause is this many bases
)

// RetryPolicy says when a request without a response, or with a retriable one, is sent to
// another host. Nothing is retried after the first byte of a response.
type RetryPolicy struct {
	ConnectFailure     bool // no connection
	RefusedStream      bool // REFUSED_STREAM, or GOAWAY before the stream
	ResetBeforeRequest bool // reset before the request's headers were sent
	Reset              bool // reset at any time before a response
	// Headers mark a response that is not passed on but retried on another host, in
	// canonical form; none of it has reached the client.
	Headers []string
	Retries int // beyond the first attempt
	// ExcludeHosts avoids hosts that were tried; the balancer picks again up to HostAttempts
	// times and then takes the last pick.
	ExcludeHosts bool
	HostAttempts int
	// PriorityFrequency > 0 leaves out priorities that were tried, after that many attempts.
	PriorityFrequency         int
	BaseInterval, MaxInterval time.Duration // jittered exponential pause between attempts
}

func decodeRetry(f *faults, at string, p *routev3.RetryPolicy) *RetryPolicy {
	if p == nil {
		return nil
	}
	f.only(at, p, "retry_on", "num_retries", "retriable_headers", "retry_priority", "retry_host_predicate", "host_selection_retry_max_attempts", "retry_back_off")
	r := &RetryPolicy{Retries: defaultRetries, HostAttempts: defaultHostAttempts}
	for on := range strings.SplitSeq(p.GetRetryOn(), ",") {
		switch strings.TrimSpace(on) {
		case "":
		case "connect-failure":
			r.ConnectFailure = true
		case "refused-stream":
			r.RefusedStream = true
		case "reset-before-request":
			r.ResetBeforeRequest = true
		case "reset":
			r.ResetBeforeRequest, r.Reset = true, true
		case "retriable-headers":
			for i, h := range p.GetRetriableHeaders() {
				if h.GetName() == "" || !h.GetPresentMatch() || h.GetInvertMatch() {
					f.addf("%s.retriable_headers[%d]: only a name with present_match: true is supported by this client", at, i)
				}
				r.Headers = append(r.Headers, headerName(h.GetName()))
			}
		default:
			f.addf("%s.retry_on: %q is not supported by this client", at, strings.TrimSpace(on))
		}
	}
	if n := p.GetNumRetries(); n != nil {
		r.Retries = int(min(n.GetValue(), 100))
	}
	if n := p.GetHostSelectionRetryMaxAttempts(); n > 0 {
		r.HostAttempts = int(min(n, 1000))
	}
	for _, h := range p.GetRetryHostPredicate() {
		if h.GetTypedConfig().GetTypeUrl() != previousHostsType {
			f.addf("%s.retry_host_predicate: %q is not supported by this client", at, h.GetName())
		}
		r.ExcludeHosts = true
	}
	if q := p.GetRetryPriority(); q != nil {
		c := open(f, at+".retry_priority", q.GetTypedConfig(), &prioritiesv3.PreviousPrioritiesConfig{})
		if c.GetUpdateFrequency() <= 0 {
			f.addf("%s.retry_priority.update_frequency: must be positive", at)
		}
		r.PriorityFrequency = int(c.GetUpdateFrequency())
	}
	// The cap keeps the exponential backoff from overflowing.
	r.BaseInterval = min(f.period(at+".retry_back_off.base_interval", p.GetRetryBackOff().GetBaseInterval(), defaultRetryBase), time.Hour)
	r.MaxInterval = f.period(at+".retry_back_off.max_interval", p.GetRetryBackOff().GetMaxInterval(), retryMaxFactor*r.BaseInterval)
	return r
}
