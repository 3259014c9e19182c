package processes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// deltaADS is the method by which Envoy requests all resources.
const deltaADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// wiretap counts what the control planes of a fleet send to their Envoy, on the wire, so that the
// tests do not depend on the counters of either side.
type wiretap struct {
	mu      sync.Mutex
	has     map[string]string // version that Envoy has, by type and name; "" while it is unknown
	sent    []string          // resources, as type name@version
	again   []string          // those of sent that Envoy already had in that version
	streams int               // delta ADS streams that were opened
	broken  error
}

// count is a wiretap's counts at some time.
type count struct{ sent, again, streams int }

func newWiretap() *wiretap { return &wiretap{has: map[string]string{}} }

func (w *wiretap) count() count {
	w.mu.Lock()
	defer w.mu.Unlock()
	return count{len(w.sent), len(w.again), w.streams}
}

// since fails the test if any resource was sent a second time after c, and returns the other
// resources sent after c.
func (w *wiretap) since(t testing.TB, c count) []string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		t.Errorf("what is sent cannot be read: %v", w.broken)
	}
	if w.streams == c.streams {
		t.Error("Envoy has opened no stream since")
	}
	if again := w.again[c.again:]; len(again) > 0 {
		t.Errorf("%d resources were sent to who had them, the first: %s", len(again), again[0])
	}
	return append([]string(nil), w.sent[c.sent:]...)
}

// key returns the name of a resource with its type.
func key(typ, name string) string { return typ[strings.LastIndexByte(typ, '.')+1:] + " " + name }

// note records a response.
func (w *wiretap) note(r *discoveryv3.DeltaDiscoveryResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range r.Resources {
		k := key(r.TypeUrl, x.Name)
		full := k + "@" + x.Version
		w.sent = append(w.sent, full)
		if w.has[k] == x.Version {
			w.again = append(w.again, full)
		} else {
			w.has[k] = "" // until its ACK, Envoy may have either version
		}
	}
	for _, name := range r.RemovedResources {
		k := key(r.TypeUrl, name)
		if _, had := w.has[k]; had { // otherwise the response means that the resource does not exist
			w.sent = append(w.sent, k+" removed")
		}
	}
}

// acknowledge records that Envoy has the resources of a response.
func (w *wiretap) acknowledge(r *discoveryv3.DeltaDiscoveryResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range r.Resources {
		w.has[key(r.TypeUrl, x.Name)] = x.Version
	}
	for _, name := range r.RemovedResources {
		delete(w.has, key(r.TypeUrl, name))
	}
}

func (w *wiretap) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken == nil {
		w.broken = err
	}
}

// to opens a proxy to an address until the test ends, and returns the proxy's address.
func (w *wiretap) to(t testing.TB, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{} // nil: accept no more
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		open = nil
		mu.Unlock()
		conns.Wait()
	})
	conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", address)
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			if open == nil {
				in.Close()
				out.Close()
			} else {
				open[in], open[out] = true, true
			}
			mu.Unlock()
			conns.Go(func() {
				w.carry(in, out)
				mu.Lock()
				delete(open, in)
				delete(open, out)
				mu.Unlock()
			})
		}
	})
	return l.Addr().String()
}

// carry forwards an HTTP/2 connection and records its frames until either side ends it. It reads
// every frame before it forwards the frame.
func (w *wiretap) carry(client, server net.Conn) {
	c := &conversation{
		w: w, follows: map[uint32]bool{}, open: map[string]*discoveryv3.DeltaDiscoveryResponse{}, asked: messages{}, answered: messages{},
	}
	var both sync.WaitGroup
	both.Go(func() {
		defer server.Close()
		if err := c.requests(client, server); err != nil {
			w.fail(err)
		}
	})
	both.Go(func() {
		defer client.Close()
		if err := c.responses(server, client); err != nil {
			w.fail(err)
		}
	})
	both.Wait()
}

// conversation is the state of one connection.
type conversation struct {
	w *wiretap

	mu      sync.Mutex
	follows map[uint32]bool                                // delta ADS streams
	open    map[string]*discoveryv3.DeltaDiscoveryResponse // not acknowledged yet, by stream and nonce

	asked, answered messages // asked is owned by requests, answered by responses
}

func answer(stream uint32, nonce string) string { return fmt.Sprint(stream, " ", nonce) }

// followed reports whether a frame belongs to a recorded stream.
func (c *conversation) followed(frame http2.Frame) (*http2.DataFrame, bool) {
	d, ok := frame.(*http2.DataFrame)
	c.mu.Lock()
	defer c.mu.Unlock()
	return d, ok && c.follows[d.StreamID]
}

// requests forwards the frames of a client.
func (c *conversation) requests(from io.Reader, to io.Writer) error {
	var read bytes.Buffer
	if _, err := io.CopyN(to, from, int64(len(http2.ClientPreface))); err != nil {
		return nil // the client has closed the connection
	}
	f := http2.NewFramer(nil, io.TeeReader(from, &read))
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return forward(f, &read, to, func(frame http2.Frame) error {
		if h, ok := frame.(*http2.MetaHeadersFrame); ok && h.PseudoValue("path") == deltaADS {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.follows[h.StreamID] = true
			c.w.mu.Lock()
			defer c.w.mu.Unlock()
			c.w.streams++
			return nil
		}
		d, ok := c.followed(frame)
		if !ok {
			return nil
		}
		return c.asked.add(d, func(data []byte) error {
			var r discoveryv3.DeltaDiscoveryRequest
			if err := proto.Unmarshal(data, &r); err != nil {
				return err
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if to := c.open[answer(d.StreamID, r.ResponseNonce)]; to != nil && r.ErrorDetail == nil {
				c.w.acknowledge(to)
			}
			delete(c.open, answer(d.StreamID, r.ResponseNonce))
			return nil
		})
	})
}

// responses forwards the frames of a server.
func (c *conversation) responses(from io.Reader, to io.Writer) error {
	var read bytes.Buffer
	return forward(http2.NewFramer(nil, io.TeeReader(from, &read)), &read, to, func(frame http2.Frame) error {
		d, ok := c.followed(frame)
		if !ok {
			return nil
		}
		return c.answered.add(d, func(data []byte) error {
			r := new(discoveryv3.DeltaDiscoveryResponse)
			if err := proto.Unmarshal(data, r); err != nil {
				return err
			}
			c.w.note(r)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.open[answer(d.StreamID, r.Nonce)] = r
			return nil
		})
	})
}

// messages assembles the gRPC messages of each stream.
type messages map[uint32][]byte

func (m messages) add(d *http2.DataFrame, whole func([]byte) error) error {
	rest := append(m[d.StreamID], d.Data()...)
	for len(rest) >= 5 {
		n := 5 + int(binary.BigEndian.Uint32(rest[1:]))
		if rest[0] != 0 {
			return errors.New("a compressed message")
		}
		if len(rest) < n {
			break
		}
		if err := whole(rest[5:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	m[d.StreamID] = rest
	return nil
}

// forward reads frames and sends the bytes of each after reading it; it returns no error when one
// side has closed the connection.
func forward(f *http2.Framer, read *bytes.Buffer, to io.Writer, see func(http2.Frame) error) error {
	for {
		frame, err := f.ReadFrame()
		var wrong http2.ConnectionError
		if errors.As(err, &wrong) || errors.Is(err, http2.ErrFrameTooLarge) {
			return fmt.Errorf("HTTP/2: %w", err)
		}
		if err != nil {
			return nil
		}
		if err := see(frame); err != nil {
			return err
		}
		if _, err := to.Write(read.Bytes()); err != nil {
			return nil
		}
		read.Reset()
	}
}
