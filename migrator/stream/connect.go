package stream

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

	"github.com/cascadeinfer/cascade/migrator/stream/dialect"
	"github.com/cascadeinfer/cascade/migrator/stream/load"
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

// call sends a request to the own engine or, when peer is a host:port, to that
// peer. The answer's body must be closed.
func (f *Front) call(ctx context.Context, e dialect.Endpoint, peer string, header http.Header, p *payload) (*http.Response, error) {
	target, transport := f.engine.JoinPath(e.Path()), http.RoundTripper(f.local)
	var fields http.Header
	if peer != "" {
		target, transport = &url.URL{Scheme: f.cfg.PeerScheme, Host: peer, Path: e.Path()}, f.peers
		fields = toPeer(header)
		fields.Set(ForwardHeader, string(f.cfg.Replica))
	} else {
		fields = toEngine(header)
	}
	// An empty value is not sent; it tells the transport that the request may be
	// sent again when an idle connection turns out to be closed.
	fields["X-Idempotency-Key"] = []string{}
	body, err := p.open()
	if err != nil {
		return nil, err
	}
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           target,
		Header:        fields,
		Body:          body,
		GetBody:       p.open,
		ContentLength: p.size(),
	}).WithContext(ctx)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		if peer == "" && ctx.Err() == nil {
			if errors.Is(err, syscall.ECONNREFUSED) {
				f.setReady(false) // nobody listens: no second look is needed
			}
			f.doubt()
		}
		return nil, err
	}
	return resp, nil
}

// streams reports whether an answer is a stream of events.
func streams(resp *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return resp.StatusCode == http.StatusOK && kind == "text/event-stream"
}

// begun is an answer that has begun: either a leg with its first chunk, or an
// answer that is not a stream and goes to the client as it is.
type begun struct {
	header http.Header
	leg    *wireLeg
	first  *dialect.Chunk
	plain  *http.Response
	work   *load.Work // of a plain answer; nil at a peer
	peer   string
}

// begin sends a request where it is placed and waits for the answer to begin.
// A peer that refuses or fails before that leaves the request to the own
// engine.
func (f *Front) begin(ctx context.Context, e dialect.Endpoint, peer string, header http.Header, p *payload, a load.Arrival) (begun, error) {
	if peer != "" {
		b, err := f.beginAt(ctx, e, peer, header, p, a)
		if err == nil || ctx.Err() != nil {
			p.release()
			return b, err
		}
		f.log.Warn("a peer did not serve a forward; the own engine does", "peer", peer, "error", err)
	}
	return f.beginAt(ctx, e, "", header, p, a)
}

func (f *Front) beginAt(ctx context.Context, e dialect.Endpoint, peer string, header http.Header, p *payload, a load.Arrival) (begun, error) {
	var work *load.Work
	if peer == "" {
		work = f.tracker.Begin(a)
	}
	end := func() {
		if work != nil {
			work.End()
		}
	}
	resp, err := f.call(ctx, e, peer, header, p)
	if err != nil {
		end()
		return begun{}, err
	}
	if peer == "" {
		p.release()
	} else if resp.Header.Get(length.RefusedHeader) != "" {
		resp.Body.Close()
		return begun{}, errors.New("the peer refuses")
	}
	b := begun{header: resp.Header, peer: peer}
	if !streams(resp) {
		resp.Body = newIdleBody(resp.Body, f.cfg.IdleTimeout)
		b.plain, b.work = resp, work
		return b, nil
	}
	b.leg = readLeg(resp.Body, f.cfg.IdleTimeout, work)
	if b.first, err = b.leg.Next(); err != nil {
		b.leg.Close()
		if peer == "" && ctx.Err() == nil {
			f.doubt()
		}
		return begun{}, err
	}
	return b, nil
}
