package processes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/move"
)

// largestEnvelope bounds the size of a message on a link, in bytes.
const largestEnvelope = 16 << 20

// crossing is a message about a migration while a link carries it. A watch function may change it.
type crossing struct {
	*api.Transfer
	from, to string // replicas
}

func (c crossing) kind() move.Kind { return move.Kind(c.Kind) }

// state determines what a link does with its traffic.
type state int

const (
	open    state = iota
	cut           // closes the connections, and accepts none
	dead          // carries nothing, but keeps the connections open
	delayed       // carries everything with a delay
)

// delay is the delay of a delayed link, for each message and each piece of a stream.
const delay = 150 * time.Millisecond

// link is a proxy through which the other replicas reach one replica's peer address. It reads the
// messages, so that a test can act at the moment when a message is in transit.
type link struct {
	to      string // the replica behind it
	address string // of the link
	peer    string // address of the replica

	mu     sync.Mutex
	state  state
	change chan struct{} // closed and replaced at every change of state
	watch  func(c crossing) bool
}

// newLink opens a link to a replica's peer address until the test ends.
func newLink(t testing.TB, to, peer string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	l := &link{to: to, address: listener.Addr().String(), peer: peer, change: make(chan struct{})}
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: l.handler(), Protocols: &both, ErrorLog: log.New(io.Discard, "", 0)}
	go srv.Serve(listener)
	t.Cleanup(func() { srv.Close() })
	return l
}

// handler forwards requests in the protocol in which they arrive.
func (l *link) handler() http.Handler {
	transport := func(http2 bool) *http.Transport {
		var p http.Protocols
		p.SetHTTP1(!http2)
		p.SetUnencryptedHTTP2(http2)
		return &http.Transport{Protocols: &p, DisableCompression: true, MaxIdleConnsPerHost: 64}
	}
	proxies := map[bool]*httputil.ReverseProxy{}
	for _, http2 := range []bool{false, true} {
		proxies[http2] = &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.Out.URL.Scheme, r.Out.URL.Host = "http", l.peer
			},
			Transport:     transport(http2),
			FlushInterval: -1,
			ErrorLog:      log.New(io.Discard, "", 0),
			// If the replica is unreachable, cut the connection, as a network does.
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
			ModifyResponse: func(r *http.Response) error {
				r.Body = &late{ReadCloser: r.Body, l: l, ctx: r.Request.Context()}
				return nil
			},
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := context.WithCancel(r.Context())
		defer end()
		defer l.onCut(end)()
		if l.pass(ctx) != nil {
			panic(http.ErrAbortHandler)
		}
		r = r.WithContext(ctx)
		if strings.HasPrefix(r.Header.Get("content-type"), "application/grpc") {
			r.Body = &tapped{body: r.Body, l: l, ctx: ctx}
		}
		proxies[r.ProtoMajor == 2].ServeHTTP(w, r)
	})
}

// set changes what the link does.
func (l *link) set(s state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	close(l.change)
	l.change = make(chan struct{})
}

// onMessage calls watch for every message about a migration before it is forwarded; the link drops
// the message unless watch returns true. nil: forward all.
func (l *link) onMessage(watch func(c crossing) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = watch
}

var errCut = errors.New("the link is cut")

// pass waits while the state of the link delays traffic.
func (l *link) pass(ctx context.Context) error {
	for {
		l.mu.Lock()
		s, change := l.state, l.change
		l.mu.Unlock()
		switch s {
		case open:
			return ctx.Err()
		case cut:
			return errCut
		case delayed:
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
			return ctx.Err()
		case dead:
			select {
			case <-change:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// onCut calls end when the link is cut, until stop.
func (l *link) onCut(end func()) (stop func()) {
	over := make(chan struct{})
	go func() {
		for {
			l.mu.Lock()
			s, change := l.state, l.change
			l.mu.Unlock()
			if s == cut {
				end()
				return
			}
			select {
			case <-change:
			case <-over:
				return
			}
		}
	}()
	return func() { close(over) }
}

// late is a body that is delayed as the link's state requires.
type late struct {
	io.ReadCloser
	l   *link
	ctx context.Context
}

func (b *late) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if blocked := b.l.pass(b.ctx); blocked != nil {
		return 0, blocked
	}
	return n, err
}

// tapped is the body of a stream between migrators, split into messages.
type tapped struct {
	body io.ReadCloser
	l    *link
	ctx  context.Context
	rest []byte // of the frame being forwarded
}

func (b *tapped) Close() error { return b.body.Close() }

func (b *tapped) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		frame, err := b.frame()
		if err == nil {
			err = b.l.pass(b.ctx)
		}
		if err != nil {
			return 0, err
		}
		b.rest = frame
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// frame reads one message, which the watch function may change; it drops an empty one.
func (b *tapped) frame() ([]byte, error) {
	var head [5]byte // compression flag, length
	if _, err := io.ReadFull(b.body, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if head[0] != 0 || n > largestEnvelope {
		return nil, fmt.Errorf("a frame of %d bytes, compressed: %d", n, head[0])
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(b.body, data); err != nil {
		return nil, err
	}
	var e api.Envelope
	if err := proto.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	b.l.mu.Lock()
	watch := b.l.watch
	b.l.mu.Unlock()
	if m := e.GetTransfer(); m != nil && watch != nil {
		if !watch(crossing{Transfer: m, from: e.From, to: b.l.to}) {
			return nil, nil
		}
		var err error
		if data, err = proto.Marshal(&e); err != nil {
			return nil, err
		}
	}
	binary.BigEndian.PutUint32(head[1:], uint32(len(data)))
	return append(head[:], data...), nil
}
