package frontend

import (
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

var dialer = &net.Dialer{Timeout: dialTimeout}

// payload is the body of an engine's request. It is let go as soon as the
// engine has answered: a prompt is large and a stream is long.
type payload struct {
	mu    sync.Mutex
	bytes []byte
}

func (p *payload) size() int64 { return int64(len(p.bytes)) }

func (p *payload) open() (io.ReadCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes == nil {
		return nil, errors.New("internal error: a request's body is opened after it was let go")
	}
	return &payloadReader{rest: p.bytes}, nil
}

func (p *payload) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes = nil
}

// payloadReader reads a payload and lets go of it at its end.
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

// send sends an order to the own engine or to a peer. The answer's body must be
// closed.
func (f *Server) send(ctx context.Context, o *legRequest) (*http.Response, error) {
	target, transport := f.engine.JoinPath(o.endpoint.Path()), http.RoundTripper(f.local)
	if peer := o.to.Address; peer != "" {
		target, transport = &url.URL{Scheme: f.cfg.PeerScheme, Host: peer, Path: o.endpoint.Path()}, f.peers
	}
	fields := o.fields()
	// An empty value is not sent; it tells the transport that the request may be
	// sent again when an idle connection turns out to be closed.
	fields["X-Idempotency-Key"] = []string{}
	body, err := o.body.open()
	if err != nil {
		return nil, err
	}
	again := false // the goroutine that calls RoundTrip sends again, too
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           target,
		Header:        fields,
		Body:          body,
		GetBody:       func() (io.ReadCloser, error) { again = true; return o.body.open() },
		ContentLength: o.body.size(),
	}).WithContext(ctx)
	resp, err := transport.RoundTrip(req)
	if err == nil && again && resp.StatusCode == http.StatusConflict {
		// The first of the two had come through: the leg is one that nobody reads.
		resp.Body.Close()
		return nil, errTwice
	}
	return resp, err
}

// errTwice is a lost request, and no error of its client's.
var errTwice = errors.New("the engine lost the connection of a request that it had begun")

// isEventStream reports whether an answer is a stream of events.
func isEventStream(resp *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return resp.StatusCode == http.StatusOK && kind == "text/event-stream"
}

// openedLeg is an answer that has begun: either a leg with its first chunk, or an
// answer that is not a stream and goes to the client as it is.
type openedLeg struct {
	header http.Header
	leg    *wireLeg
	first  *openai.Chunk
	plain  *http.Response
	home   *localLeg // at the own engine, else nil
	link   *link
	to     Target
}

// end releases what a plain answer holds.
func (b openedLeg) end() {
	b.plain.Body.Close()
	b.link.cancel()
	if b.home != nil {
		b.home.end(false)
	}
}

// settle tells the load tracker what a plain answer of the own engine brings.
func (b openedLeg) settle(answer []byte) {
	if u, ok := openai.UsageIn(answer); ok && b.home != nil {
		b.home.work.Settle(policies.Tokens(u.Prompt), policies.Tokens(u.Output), policies.Tokens(u.Cached))
	}
}

// openLeg sends an order where it is placed and waits for the answer to begin. A
// peer that refuses or fails before that leaves the request to the own engine.
func (f *Server) openLeg(ctx context.Context, o *legRequest) (openedLeg, error) {
	if o.to.Address != "" {
		b, err := f.openLegAt(ctx, o)
		if err == nil || ctx.Err() != nil {
			o.body.release()
			return b, err
		}
		f.log.Warn("a peer did not serve a forward; the own engine does", "peer", o.to.Replica, "address", o.to.Address, "error", err)
		o.to = Target{}
	}
	return f.openLegAt(ctx, o)
}

// openLegAt is begin without a second try. While it waits, the order's stream
// knows what to lose when the replica is.
func (f *Server) openLegAt(parent context.Context, o *legRequest) (openedLeg, error) {
	ctx, cancel := context.WithCancel(parent)
	b := openedLeg{link: &link{cancel: cancel}, to: o.to}
	local := o.to.Address == ""
	if local {
		b.home = f.registerLeg(o, b.link)
	}
	if o.stream != nil {
		o.stream.tries(o.to.Replica, b.link) // until the stream has the leg, or the client its answer
	}
	fail := func(err error) (openedLeg, error) {
		cancel()
		if o.stream != nil {
			o.stream.tries("", nil)
		}
		if b.leg != nil {
			b.leg.leave() // what had not begun has not finished
		} else if b.home != nil {
			b.home.end(true)
		}
		if local && parent.Err() == nil {
			f.probeNow()
		}
		return openedLeg{}, b.link.why(err)
	}
	resp, err := f.send(ctx, o)
	if err != nil {
		if local && parent.Err() == nil && errors.Is(err, syscall.ECONNREFUSED) {
			f.setReady(false) // nobody listens: no second look is needed
			f.evacuate()
		}
		return fail(err)
	}
	if local {
		o.body.release()
	} else if resp.Header.Get(length.RefusedHeader) != "" {
		resp.Body.Close()
		return fail(errors.New("the peer refuses"))
	}
	b.header = resp.Header
	if !isEventStream(resp) {
		resp.Body = newIdleBody(resp.Body, f.cfg.IdleTimeout)
		b.plain = resp
		return b, nil
	}
	b.leg = readLeg(resp.Body, b.link, b.home, f.cfg.IdleTimeout, o.hangTimeout)
	if b.first, err = b.leg.Next(); err != nil {
		return fail(err)
	}
	return b, nil
}
