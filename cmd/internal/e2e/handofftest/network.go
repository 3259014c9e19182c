package handofftest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// network is a network in memory, which takes the virtual time of a synctest bubble. nil is this host's.
type network struct {
	mu        sync.Mutex
	listeners map[string]*testkit.PipeListener // by address
	last      uint16                           // port that was chosen
}

// Listen opens a listener, also at the address of one that was opened before. Port 0 stands for a free one.
func (n *network) Listen(_, address string) (net.Listener, error) {
	if n == nil {
		return net.Listen("tcp", address)
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[string]*testkit.PipeListener)
	}
	if at.Port() == 0 {
		n.last++
		at = netip.AddrPortFrom(at.Addr(), n.last)
	}
	l := testkit.NewPipeListener(at)
	n.listeners[at.String()] = l
	return l, nil
}

// Dial connects to the latest listener at an address.
func (n *network) Dial(ctx context.Context, kind, address string) (net.Conn, error) {
	if n == nil {
		return new(net.Dialer).DialContext(ctx, kind, address)
	}
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("%s: %w", address, syscall.ECONNREFUSED)
	}
	return l.Dial(ctx)
}

// client returns a client of the network, until the test ends.
func (n *network) client(t testing.TB) *http.Client {
	transport := &http.Transport{DialContext: n.Dial, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// serve serves a handler at an address, 127.0.0.1:0 for any, until the test ends or stop is called. It returns the base URL.
func (n *network) serve(t testing.TB, address string, h http.Handler) (url string, stop func()) {
	t.Helper()
	l := testkit.Must(n.Listen("tcp", address))
	s, served := &http.Server{Handler: h}, make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l) // until stop
	}()
	stop = sync.OnceFunc(func() { _ = s.Close(); <-served })
	t.Cleanup(stop)
	return "http://" + l.Addr().String(), stop
}
