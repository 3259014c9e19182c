package handover

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStopped is the error of Add after StopAccepting.
var ErrStopped = errors.New("another process has taken over the sockets")

// Listeners is a set of named listening sockets of one process. The zero value is
// empty. Its methods are safe for concurrent use.
type Listeners struct {
	mu      sync.Mutex
	open    map[string]*listener
	stopped bool
}

// Add adds l to the set under a name, and returns the listener to serve; closing that listener
// removes the socket. A name may be added again once its socket is closed. l must be a
// *net.TCPListener or a *net.UnixListener. After an error the caller still owns it.
func (d *Listeners) Add(name string, l net.Listener) (net.Listener, error) {
	var s socket
	switch l := l.(type) {
	case *net.TCPListener:
		s = l
	case *net.UnixListener:
		s = l
	default:
		return nil, fmt.Errorf("listener %s: a %T cannot be handed over", name, l)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return nil, fmt.Errorf("listener %s: %w", name, ErrStopped)
	}
	if d.open == nil {
		d.open = make(map[string]*listener)
	}
	if d.open[name] != nil {
		return nil, fmt.Errorf("listener %s is already open", name)
	}
	g := &listener{socket: s, set: d, name: name, closed: make(chan struct{}), parked: make(chan struct{})}
	d.open[name] = g
	return g, nil
}

// parkTimeout bounds how long StopAccepting waits for a server that is not in
// Accept.
const parkTimeout = time.Second

// StopAccepting stops accepting at every listener without affecting the servers: their connections
// continue, and their Accept blocks until the listener is closed. It returns when every server is
// in Accept again, so that each connection accepted before has reached its server, or after a
// second. No listener can be added afterwards.
func (d *Listeners) StopAccepting() {
	late := time.NewTimer(parkTimeout)
	defer late.Stop()
	d.stopAccepting(late.C)
}

// stopAccepting is StopAccepting with a deadline: it waits for the servers until late.
func (d *Listeners) stopAccepting(late <-chan time.Time) {
	d.mu.Lock()
	d.stopped = true
	all := d.open
	d.open = nil
	d.mu.Unlock()
	for _, g := range all {
		g.stop()
	}
	for _, g := range all {
		if !g.accepting.Load() {
			continue
		}
		select {
		case <-g.parked:
		case <-g.closed:
		case <-late:
			return
		}
	}
}

// duplicate returns duplicates of the open sockets, sorted by name. The caller closes them.
func (d *Listeners) duplicate() (names []string, sockets []int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names = slices.Sorted(maps.Keys(d.open))
	for _, name := range names {
		fd, err := duplicate(d.open[name])
		if err != nil {
			for _, fd := range sockets {
				unix.Close(fd)
			}
			return nil, nil, fmt.Errorf("listener %s: %w", name, err)
		}
		sockets = append(sockets, fd)
	}
	return names, sockets, nil
}

// duplicate returns a descriptor of a socket. An os.File's would make the socket block, also for its server.
func duplicate(s socket) (fd int, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(failed, err)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// socket is a listening socket whose descriptor another process can get.
type socket interface {
	net.Listener
	syscall.Conn
}

// listener is a listener that can stop accepting without being closed. It
// overrides the methods that servers call.
type listener struct {
	socket
	set       *Listeners
	name      string
	closeOnce sync.Once
	closed    chan struct{} // closed by Close

	accepting atomic.Bool   // Accept has been called
	parkOnce  sync.Once     // closes parked
	parked    chan struct{} // closed when Accept blocks after stop

	mu      sync.Mutex
	stopped bool
}

// Accept implements net.Listener.
func (g *listener) Accept() (net.Conn, error) {
	g.accepting.Store(true)
	conn, err := g.socket.Accept()
	if err == nil {
		return conn, nil
	}
	g.mu.Lock()
	stopped := g.stopped
	g.mu.Unlock()
	if stopped {
		g.parkOnce.Do(func() { close(g.parked) })
		<-g.closed
		err = net.ErrClosed
	}
	return nil, err
}

// Close implements net.Listener.
func (g *listener) Close() error {
	g.set.mu.Lock()
	if g.set.open[g.name] == g {
		delete(g.set.open, g.name)
	}
	g.set.mu.Unlock()
	g.closeOnce.Do(func() { close(g.closed) })
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return nil
	}
	return g.socket.Close()
}

func (g *listener) stop() {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.socket.Close()
}
