package processes

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
)

// largestEnvelope bounds the size of a message on a link, in bytes.
const largestEnvelope = 16 << 20

// link is a proxy through which the other replicas reach one replica's peer address. It reads the
// messages, so that a test can act at the moment when a message is in transit.
type link struct {
	address string // of the link
	peer    string // address of the replica

	mu    sync.Mutex
	watch func(*api.Transfer)
}

// newLink opens a link to a replica's peer address until the test ends.
func newLink(t testing.TB, peer string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	l := &link{address: listener.Addr().String(), peer: peer}
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
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("content-type"), "application/grpc") {
			r.Body = &tapped{body: r.Body, l: l}
		}
		proxies[r.ProtoMajor == 2].ServeHTTP(w, r)
	})
}

// onMessage calls watch for every message about a migration before it is forwarded. nil watches none.
func (l *link) onMessage(watch func(*api.Transfer)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = watch
}

// tapped is the body of a stream between migrators, split into messages.
type tapped struct {
	body io.ReadCloser
	l    *link
	rest []byte // of the frame being forwarded
}

func (b *tapped) Close() error { return b.body.Close() }

func (b *tapped) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		frame, err := b.frame()
		if err != nil {
			return 0, err
		}
		b.rest = frame
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// frame reads one message, and shows it.
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
		watch(m)
	}
	return append(head[:], data...), nil
}
