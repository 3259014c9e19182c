// Package upstream sends requests to endpoints and reports, for a request without a
// response, whether the endpoint can have started it.
//
// It makes one attempt at one endpoint; its caller chooses, retries and sets timeouts.
// Invariant: an error of Kind NotConnected, Refused or BeforeRequest means that no
// endpoint has started the request, so sending it to another one cannot do the work
// twice.
package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// Kind says why a request got no response.
type Kind int

// The kinds of Error.
const (
	NotConnected  Kind = iota // no connection
	Refused                   // REFUSED_STREAM, or GOAWAY before the stream
	BeforeRequest             // reset before the request's headers were sent
	Reset                     // reset afterwards; the endpoint may have worked on it
)

// String names the kind for messages and metrics.
func (k Kind) String() string {
	return [...]string{"connection failure", "refused stream", "reset before the request", "connection reset"}[k]
}

// Error is the error of a request without a response.
type Error struct {
	Kind Kind
	Err  error
}

func (e *Error) Error() string { return e.Kind.String() + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Settings are the settings of connections to an endpoint. Endpoints of the same address
// and settings share connections.
type Settings struct {
	HTTP2             bool          // h2c with prior knowledge; otherwise HTTP/1.1
	MaxStreams        int           // per HTTP/2 connection; 0 = what the peer allows
	ConnectTimeout    time.Duration // of a connection attempt
	Ping, PingTimeout time.Duration // probes of a silent HTTP/2 connection; 0 = none
}

// Limits of connections.
const (
	idleTimeout    = time.Hour // of an HTTP/1.1 connection, Envoy's default
	maxIdle        = 4096      // HTTP/1.1 connections kept per endpoint
	maxHeaderBytes = 1 << 20   // of a response
)

// Pools holds connections by endpoint. All methods may be called from several
// goroutines.
type Pools struct {
	mu     sync.Mutex
	pools  map[key]*Pool
	closed bool
}

type key struct {
	address  string
	settings Settings
}

// NewPools returns an empty set of pools.
func NewPools() *Pools { return &Pools{pools: make(map[key]*Pool)} }

// Get returns the pool of an endpoint.
func (p *Pools) Get(address string, s Settings) *Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := key{address, s}
	pool := p.pools[k]
	if pool == nil {
		pool = newPool(address, s)
		p.pools[k] = pool
		if p.closed {
			pool.retire()
		}
	}
	return pool
}

// RetireUnless retires the pools whose endpoint is no longer wanted. Requests on them run
// to their end; a connection is closed after its last request.
func (p *Pools) RetireUnless(wanted func(address string, s Settings) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, pool := range p.pools {
		if !wanted(k.address, k.settings) {
			delete(p.pools, k)
			pool.retire()
		}
	}
}

// Close cuts every connection and waits for dials that are under way.
func (p *Pools) Close() {
	p.mu.Lock()
	p.closed = true
	all := p.pools
	p.pools = make(map[key]*Pool)
	p.mu.Unlock()
	for _, pool := range all {
		pool.close()
	}
}

// Pool holds the connections to one endpoint.
type Pool struct {
	address   string
	settings  Settings
	transport *http.Transport
	h2        *connections // nil for HTTP/1.1
}

// dialError marks the errors of making a connection.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

func newPool(address string, s Settings) *Pool {
	p := &Pool{address: address, settings: s}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!s.HTTP2)
	protocols.SetUnencryptedHTTP2(s.HTTP2)
	dialer := net.Dialer{Timeout: s.ConnectTimeout}
	p.transport = &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, dialError{err}
			}
			return c, nil
		},
		DisableCompression:     true, // bodies pass as they are
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: s.Ping, PingTimeout: s.PingTimeout},
	}
	if s.HTTP2 {
		p.transport.IdleConnTimeout = 0 // one connection, kept
		p.h2 = newConns(address, s, p.transport)
	}
	return p
}

func (p *Pool) retire() {
	if p.h2 != nil {
		p.h2.retire()
		return
	}
	// The transport also closes connections in use when they are returned, unless another
	// request asks for one.
	p.transport.CloseIdleConnections()
}

func (p *Pool) close() {
	if p.h2 != nil {
		p.h2.close()
	}
	p.transport.CloseIdleConnections()
}

// Connections counts the open HTTP/2 connections; always 0 for HTTP/1.1.
func (p *Pool) Connections() int {
	if p.h2 == nil {
		return 0
	}
	return p.h2.count()
}

// RoundTrip makes one attempt. The error is always an *Error, except for a cancelled
// context, whose cause it returns. The request's body is always closed.
func (p *Pool) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent sentTrace
	ctx := httptrace.WithClientTrace(r.Context(), sent.hooks())
	if p.h2 == nil {
		resp, err := p.transport.RoundTrip(r.WithContext(ctx))
		return resp, p.classify(r.Context(), err, &sent)
	}
	conn, err := p.h2.reserve(ctx)
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &Error{NotConnected, err}
	}
	resp, err := conn.RoundTrip(r.WithContext(ctx))
	return resp, p.classify(r.Context(), err, &sent)
}

// sentTrace records whether the headers were sent.
type sentTrace struct{ done atomic.Bool }

func (s *sentTrace) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{WroteHeaders: func() { s.done.Store(true) }}
}

// goAwayText is net/http's error text for a GOAWAY before the stream; the error itself is
// not exported.
const goAwayText = "http2: Transport received Server's graceful shutdown GOAWAY"

func (p *Pool) classify(ctx context.Context, err error, s *sentTrace) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var stream http2.StreamError
	switch {
	case errors.As(err, new(dialError)):
		return &Error{NotConnected, err}
	case errors.As(err, &stream) && stream.Code == http2.ErrCodeRefusedStream, strings.Contains(err.Error(), goAwayText):
		return &Error{Refused, err}
	case !s.done.Load():
		return &Error{BeforeRequest, err}
	}
	return &Error{Reset, err}
}
