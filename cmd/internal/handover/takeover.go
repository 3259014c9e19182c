package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

// supported reports whether this system supports handover.
const supported = runtime.GOOS == "linux"

// Takeover is a process's exclusive right to take over at a path, from Begin to Finish or Abandon.
// Only one goroutine may use it.
type Takeover struct {
	// Listeners are the sockets of the running process, by name; the caller closes those that it
	// does not use. It is empty if no process runs.
	Listeners map[string]net.Listener
	// Process is the id of the running process; 0 for none.
	Process int

	path string
	lock *os.File
	conn *net.UnixConn // to the running process, or nil
	once sync.Once
}

// Begin waits until no other process has begun a takeover at the path, and requests the sockets of
// the process that serves there. If no process serves the path, it returns no error, even if a dead
// process left its socket. An error means that a process runs and does not hand over; ctx bounds
// the wait.
func Begin(ctx context.Context, path string) (*Takeover, error) {
	c := &Takeover{path: path}
	if !supported {
		return c, nil
	}
	if err := c.begin(ctx); err != nil {
		c.Abandon()
		return nil, fmt.Errorf("handover: %w", err)
	}
	return c, nil
}

func (c *Takeover) begin(ctx context.Context) (err error) {
	if c.lock, err = lock(ctx, c.path); err != nil {
		return err
	}
	if c.conn, err = c.dial(ctx); err != nil || c.conn == nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { c.conn.Close() })()
	if err := c.requestListeners(); err != nil {
		return fmt.Errorf("the process that serves %s: %w", c.path, err)
	}
	return nil
}

// requestListeners receives the sockets.
func (c *Takeover) requestListeners() error {
	if err := unixsocket.CheckPeer(c.conn); err != nil {
		return fmt.Errorf("sockets are taken over from processes of the same user only: %w", err)
	}
	if err := send(c.conn, packet{Step: "ask", Process: os.Getpid()}); err != nil {
		return err
	}
	m, files, err := receive(c.conn, "listeners", stepTimeout)
	if err != nil {
		return err
	}
	defer closeAll(files)
	c.Process, c.Listeners = m.Process, make(map[string]net.Listener)
	for i, f := range files {
		l, err := net.FileListener(f)
		if err != nil {
			return fmt.Errorf("socket %s: %w", m.Listeners[i], err)
		}
		c.Listeners[m.Listeners[i]] = l
	}
	return nil
}

// TakeListener removes a socket from Listeners and returns it if it listens at the
// address, host:port or @NAME of an abstract Unix socket; port 0 matches every port.
// Otherwise it closes the socket and returns nil.
func (c *Takeover) TakeListener(name, address string) net.Listener {
	l := c.Listeners[name]
	delete(c.Listeners, name)
	if l == nil {
		return nil
	}
	if !listensAt(l.Addr(), address) {
		l.Close()
		return nil
	}
	return l
}

// listensAt reports whether the address of a socket is the one that is asked for; see TakeListener. An address of all
// interfaces has several spellings: a listener at 0.0.0.0 serves both families, and says that it is at [::].
func listensAt(have net.Addr, address string) bool {
	at, ok := have.(*net.TCPAddr)
	if !ok {
		return have.String() == address
	}
	want, err := net.ResolveTCPAddr("tcp", address)
	if err != nil || want.Port != 0 && want.Port != at.Port {
		return false
	}
	if len(want.IP) == 0 || want.IP.IsUnspecified() {
		return at.IP.IsUnspecified()
	}
	return want.IP.Equal(at.IP)
}

// Finish reports to the running process, if any, that this one accepts, waits until it has stopped
// accepting, and serves the path in its place. A process that has died counts as stopped, and a
// suspended one stops as soon as it continues. The caller closes the link, which leads to the other
// process as long as it runs; it is nil if no process ran or if it has died. An error means that
// the other process continues to accept, so that this one should end, or that the path cannot be
// served.
func (c *Takeover) Finish(ctx context.Context) (*Server, *Link, error) {
	defer c.Abandon()
	if !supported {
		return &Server{}, nil, nil
	}
	if ctx.Err() != nil { // asked to end while it started: the running process must not stop for it
		return nil, nil, context.Cause(ctx)
	}
	err := c.stopPredecessor(ctx)
	if err != nil && (ctx.Err() != nil || !c.unserved(ctx)) {
		return nil, nil, fmt.Errorf("handover: the process that serves %s did not stop accepting: %w", c.path, err)
	}
	p, failed := newServer(c.path)
	if failed != nil {
		return nil, nil, fmt.Errorf("handover: %w", failed)
	}
	if c.conn == nil || err != nil {
		return p, nil, nil
	}
	l := newLink(c.conn)
	c.conn = nil
	return p, l, nil
}

// stopPredecessor makes the running process stop accepting.
func (c *Takeover) stopPredecessor(ctx context.Context) error {
	if c.conn == nil {
		return nil
	}
	conn := c.conn
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := send(c.conn, packet{Step: "ready"}); err != nil {
		return err
	}
	_, _, err := receive(c.conn, "stopped", stoppedTimeout)
	if ctx.Err() == nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // it is suspended: when it continues, it reads the request to stop
	}
	return err
}

// unserved reports whether no process serves the path any more.
func (c *Takeover) unserved(ctx context.Context) bool {
	conn, err := c.dial(ctx)
	if err == nil && conn != nil {
		conn.Close()
	}
	return err == nil && conn == nil
}

// dial connects to the process that serves the path; it returns nil if there is none.
func (c *Takeover) dial(ctx context.Context) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", c.path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Abandon ends the takeover. Before Finish, the running process then continues unchanged. Further
// calls do nothing.
func (c *Takeover) Abandon() {
	c.once.Do(func() {
		for _, l := range c.Listeners {
			l.Close()
		}
		if c.conn != nil {
			c.conn.Close()
		}
		if c.lock != nil {
			c.lock.Close()
		}
	})
}
