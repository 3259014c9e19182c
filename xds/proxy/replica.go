package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// failureKind says why a request got no response.
type failureKind int

// A failure of the first three kinds means that no replica has started the request, so that
// sending it to another one cannot do the work twice.
const (
	notConnected  failureKind = iota // no connection
	refusedStream                    // REFUSED_STREAM, or GOAWAY before the stream
	beforeRequest                    // reset before the request's headers were sent
	reset                            // reset afterwards; the replica may have worked on it
)

// String names the kind for messages and metrics.
func (k failureKind) String() string {
	return [...]string{"connection failure", "refused stream", "reset before the request", "connection reset"}[k]
}

// failure is the error of a request without a response.
type failure struct {
	kind failureKind
	err  error
}

func (e *failure) Error() string { return e.kind.String() + ": " + e.err.Error() }

// Unwrap returns the cause.
func (e *failure) Unwrap() error { return e.err }

// link are the settings of connections to replicas, which speak HTTP/2 with prior knowledge.
type link struct {
	secure                      bool
	maxStreams                  int
	connectTimeout, pingTimeout time.Duration
}

// maxAnswerHeader bounds the headers of a response, in bytes.
const maxAnswerHeader = 1 << 20

// replicas holds the connections to all replicas, by address. It is safe for concurrent use.
type replicas struct {
	tls func(address string) *tls.Config // nil: connections with TLS fail

	mu     sync.Mutex
	all    map[string]*replica
	closed bool
	failed failedReplicas
}

func newReplicas(secure func(address string) *tls.Config) *replicas {
	return &replicas{tls: secure, all: make(map[string]*replica)}
}

// get returns a replica. Other settings than before make new connections.
func (p *replicas) get(address string, s link) *replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.all[address]
	if r == nil || r.link != s {
		if r != nil {
			r.retire()
		}
		r = newReplica(address, s, p.tls)
		p.all[address] = r
		if p.closed {
			r.retire()
		}
	}
	return r
}

// keep retires the replicas that are not wanted any more. Requests on them run to their end; a
// connection is closed after its last request.
func (p *replicas) keep(wanted map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, r := range p.all {
		if !wanted[address] {
			delete(p.all, address)
			r.retire()
		}
	}
	p.failed.keep(wanted)
}

// close cuts every connection and waits for dials that are under way.
func (p *replicas) close() {
	p.mu.Lock()
	p.closed = true
	all := p.all
	p.all = make(map[string]*replica)
	p.mu.Unlock()
	for _, r := range all {
		r.close()
		r.transport.CloseIdleConnections()
	}
}

// replica holds the connections to one replica.
type replica struct {
	connections
}

// dialError marks the errors of making a connection.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// errNoTLS is why connections with TLS fail.
var errNoTLS = errors.New("the fleet requires TLS with replicas, and this proxy has no certificate")

func newReplica(address string, s link, secure func(string) *tls.Config) *replica {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(!s.secure)
	protocols.SetHTTP2(s.secure)
	dialer := net.Dialer{Timeout: s.connectTimeout}
	t := &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			if s.secure && secure == nil {
				return nil, dialError{errNoTLS}
			}
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, dialError{err}
			}
			return c, nil
		},
		TLSHandshakeTimeout:    s.connectTimeout,
		DisableCompression:     true, // bodies pass as they are
		MaxResponseHeaderBytes: maxAnswerHeader,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: resources.PingInterval, PingTimeout: s.pingTimeout,
			MaxReceiveBufferPerStream: resources.UpstreamWindow,
		},
	}
	if s.secure && secure != nil {
		t.TLSClientConfig = secure(address)
	}
	return &replica{connections{address: address, link: s, transport: t}}
}

// send makes one attempt. begun says that an interim response (1xx) came, by which the replica
// announces that it works on the request. The error is always a *failure, except for a cancelled
// context, whose cause it returns. The request's body is always closed.
func (r *replica) send(q *http.Request) (resp *http.Response, begun bool, err error) {
	var sent sentTrace
	ctx := httptrace.WithClientTrace(q.Context(), sent.hooks())
	q = q.WithContext(ctx)
	if r.link.secure {
		secure := *q.URL
		secure.Scheme = "https"
		q.URL = &secure
	}
	conn, err := r.reserve(ctx)
	if err != nil {
		if q.Body != nil {
			q.Body.Close()
		}
		if ctx.Err() != nil {
			return nil, false, context.Cause(ctx)
		}
		return nil, false, &failure{notConnected, err}
	}
	resp, err = conn.RoundTrip(q)
	return resp, sent.begun.Load(), classify(ctx, err, &sent)
}

// sentTrace records whether the headers were sent, and whether an interim response came.
type sentTrace struct{ done, begun atomic.Bool }

func (s *sentTrace) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		WroteHeaders:   func() { s.done.Store(true) },
		Got1xxResponse: func(int, textproto.MIMEHeader) error { s.begun.Store(true); return nil },
	}
}

// goAwayText is net/http's error text for a GOAWAY before the stream; the error itself is
// not exported. TestKinds fails when it changes.
const goAwayText = "http2: Transport received Server's graceful shutdown GOAWAY"

func classify(ctx context.Context, err error, s *sentTrace) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var stream http2.StreamError
	switch {
	case errors.As(err, new(dialError)):
		return &failure{notConnected, err}
	case errors.As(err, &stream) && stream.Code == http2.ErrCodeRefusedStream, strings.Contains(err.Error(),
		goAwayText):
		return &failure{refusedStream, err}
	case !s.done.Load():
		return &failure{beforeRequest, err}
	}
	return &failure{reset, err}
}

// A replica that gave no response is passed over for passOver, twice as long each time in
// succession, at most maxPassOver.
const (
	passOver    = 500 * time.Millisecond
	maxPassOver = 10 * time.Second
)

// failedReplicas are the replicas that gave no response lately. The zero value is ready; it is
// safe for concurrent use.
type failedReplicas struct {
	mu  sync.Mutex
	all atomic.Pointer[map[string]pause] // by address; immutable
}

// pause is how long a replica is passed over.
type pause struct {
	until  time.Time
	length time.Duration
}

// add passes a replica over, unless it is passed over already. It reports whether it does.
func (f *failedReplicas) add(address string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := make(map[string]pause)
	if all := f.all.Load(); all != nil {
		maps.Copy(next, *all)
	}
	p := next[address]
	if now.Before(p.until) {
		return false
	}
	p.length = min(max(2*p.length, passOver), maxPassOver)
	p.until = now.Add(p.length)
	next[address] = p
	f.all.Store(&next)
	return true
}

// clear forgets the failures of a replica.
func (f *failedReplicas) clear(address string) {
	if all := f.all.Load(); all == nil || (*all)[address] == (pause{}) {
		return // most often
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(*f.all.Load())
	delete(next, address)
	f.all.Store(&next)
}

// keep forgets the failures of replicas that are not wanted any more, also of those that a request
// tried after they had left.
func (f *failedReplicas) keep(wanted map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if all := f.all.Load(); all != nil && len(*all) > 0 {
		next := maps.Clone(*all)
		maps.DeleteFunc(next, func(address string, _ pause) bool { return !wanted[address] })
		f.all.Store(&next)
	}
}

// avoided returns the rule by which a pick passes replicas over; nil if it passes none over.
func (f *failedReplicas) avoided(now time.Time) func(address string) bool {
	all := f.all.Load()
	if all == nil || len(*all) == 0 {
		return nil
	}
	return func(address string) bool { return now.Before((*all)[address].until) }
}
