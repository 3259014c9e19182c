package testkit

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// PipeListener accepts the connections that its Dial makes. They are net.Pipes, so reads
// and writes take the virtual time of a synctest bubble. gRPC's bufconn does not suit HTTP: a
// read deadline that has passed may take effect after it was replaced, and the server then
// takes the client of the next request on the connection for gone.
type PipeListener struct {
	address netip.AddrPort
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// NewPipeListener returns an open listener whose Addr is a TCP address.
func NewPipeListener(address netip.AddrPort) *PipeListener {
	return &PipeListener{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *PipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections stay open.
func (l *PipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *PipeListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.address) }

// Dial waits until a connection is accepted, and returns the client's end of it. The error
// of a closed listener is ECONNREFUSED.
func (l *PipeListener) Dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
