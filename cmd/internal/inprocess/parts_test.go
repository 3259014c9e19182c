package inprocess

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// parts runs the components of a fleet so that a test can end each of them as a crash would, and
// run a replacement.
type parts struct {
	mu sync.Mutex
	by map[string]*part
}

// part is one run of a component.
type part struct {
	end  context.CancelFunc
	down chan struct{}                        // closed when the run has ended
	next chan func(ctx context.Context) error // the function of the replacement
	dead bool                                 // halted; guarded by parts.mu
}

// run implements hooks.part.
func (p *parts) run(ctx context.Context, name string, run func(context.Context) error) error {
	for {
		own, end := context.WithCancel(ctx)
		life := &part{end: end, down: make(chan struct{}), next: make(chan func(context.Context) error)}
		p.mu.Lock()
		p.by[name] = life
		p.mu.Unlock()
		err := run(own)
		end()
		p.mu.Lock()
		dead := life.dead
		p.mu.Unlock()
		if !dead {
			return err
		}
		close(life.down)
		select {
		case run = <-life.next:
		case <-ctx.Done():
			return nil
		}
	}
}

// halt ends a component and waits for it. It calls between, which breaks connections before the
// component can react to its end.
func (p *parts) halt(t testing.TB, name string, between func()) {
	t.Helper()
	p.mu.Lock()
	life := p.by[name]
	if life == nil || life.dead {
		p.mu.Unlock()
		t.Fatalf("%s does not run", name)
	}
	life.dead = true
	p.mu.Unlock()
	if between != nil {
		between()
	}
	life.end()
	testkit.WaitForEvent(t, name+" ends", life.down)
}

// alive reports whether a part runs.
func (p *parts) alive(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	life := p.by[name]
	return life != nil && !life.dead
}

// revive runs a replacement for a halted component.
func (p *parts) revive(t testing.TB, name string, run func(context.Context) error) {
	t.Helper()
	p.mu.Lock()
	life := p.by[name]
	p.mu.Unlock()
	select {
	case life.next <- run:
	case <-time.After(patience):
		t.Fatalf("the fleet does not start %s again", name)
	}
}

// sockets opens listeners and records the accepted connections, to break them.
type sockets struct {
	mu sync.Mutex
	by map[string]*socket // the latest listener by address
}

// socket is a listener and its connections.
type socket struct {
	net.Listener
	of    *sockets
	conns map[*conn]struct{} // guarded by of.mu
	dead  atomic.Bool        // the process behind the listener was killed
}

// conn is an accepted connection.
type conn struct {
	*net.TCPConn
	of *socket
}

func (s *sockets) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	if err != nil || network == "unix" { // no test breaks a Unix socket
		return l, err
	}
	out := &socket{Listener: l, of: s, conns: make(map[*conn]struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by[l.Addr().String()] = out
	return out, nil
}

// Accept implements net.Listener. It does not report the death of the process: it resets later
// connections and does not return them.
func (l *socket) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		out := &conn{c.(*net.TCPConn), l}
		l.of.mu.Lock()
		if dead := l.dead.Load(); !dead {
			l.conns[out] = struct{}{}
			l.of.mu.Unlock()
			return out, nil
		}
		l.of.mu.Unlock()
		out.reset()
	}
}

// Write implements net.Conn. A killed process sends nothing more, not even about its other
// connections, which are reset one after the other.
func (c *conn) Write(b []byte) (int, error) {
	if c.of.dead.Load() {
		return 0, net.ErrClosed
	}
	return c.TCPConn.Write(b)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.of.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.of.mu.Unlock()
	return c.TCPConn.Close()
}

// cut closes the listeners at some addresses and resets their connections, as the kernel does for
// a killed process. Listeners come first: a stream that has lost one engine must find the others gone,
// and not lose a second one that still took its request.
func (s *sockets) cut(addresses ...string) {
	var all []*socket
	var conns []*conn
	s.mu.Lock()
	for _, address := range addresses {
		if l := s.by[address]; l != nil {
			l.dead.Store(true)
			all = append(all, l)
			conns = slices.AppendSeq(conns, maps.Keys(l.conns))
		}
	}
	s.mu.Unlock()
	for _, l := range all {
		l.Close()
	}
	for _, c := range conns {
		c.reset()
	}
}

func (c *conn) reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}
