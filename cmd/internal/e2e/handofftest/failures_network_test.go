package handofftest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// network is a network in memory.
type network struct {
	mu        sync.Mutex
	listeners map[string]*testkit.PipeListener // by address
	offers    offers
	engines   map[string]*engine // by replica
}

// Listen opens a listener, also at the address of one that was opened before.
func (n *network) Listen(_, address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[string]*testkit.PipeListener)
	}
	n.listeners[address] = testkit.NewPipeListener(at)
	return n.listeners[address], nil
}

// Dial connects to the latest listener at an address.
func (n *network) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("%s: %w", address, syscall.ECONNREFUSED)
	}
	return l.Dial(ctx)
}

// client returns a client of the network.
func (n *network) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableCompression: true}}
}
