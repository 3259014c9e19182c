package frontend

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// network is a network in memory: tests that use it run in the virtual time of
// testing/synctest, so that no timeout depends on how busy the machine is. Its
// connections have no buffer: a write waits for the read.
type network struct {
	mu        sync.Mutex
	listeners map[string]*memListener // by address
	failures  map[string]error        // of dials, by address
	last      uint16                  // port that was given
}

var memory = network{listeners: make(map[string]*memListener), failures: make(map[string]error), last: 1000}

// failDials makes dials to a URL or address fail until the returned function is called.
func (n *network) failDials(to string, err error) (restore func()) {
	address := strings.TrimPrefix(to, "http://")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failures[address] = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", err)}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.failures, address)
	}
}

// listen opens a listener at a new address.
func listen() net.Listener {
	memory.mu.Lock()
	memory.last++
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), memory.last).String()
	memory.mu.Unlock()
	l, _ := memory.listenAt("tcp", address)
	return l
}

func (n *network) listenAt(_, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &memListener{testkit.NewPipeListener(netip.MustParseAddrPort(address)), address}
	n.listeners[address] = l
	return l, nil
}

// listensAt reports whether a listener is open at an address.
func (n *network) listensAt(address string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listeners[address] != nil
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l, failure := n.listeners[address], n.failures[address]
	n.mu.Unlock()
	if failure != nil {
		return nil, failure
	}
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	return l.Dial(ctx)
}

// transport returns a transport of a version of HTTP over the network.
func (n *network) transport(t testing.TB, major int) *http.Transport {
	tr := &http.Transport{DisableCompression: true, DialContext: n.dial, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(major == 1)
	tr.Protocols.SetUnencryptedHTTP2(major == 2)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// memListener is a listener of the network.
type memListener struct {
	*testkit.PipeListener
	address string
}

// Close implements net.Listener. The address is free again.
func (l *memListener) Close() error {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	if memory.listeners[l.address] == l {
		delete(memory.listeners, l.address)
	}
	return l.PipeListener.Close()
}
