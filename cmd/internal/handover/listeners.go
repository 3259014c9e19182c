package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrStopped says that the sockets belong to another process now.
var ErrStopped = errors.New("another process has taken the socket over")

// Listeners are the listening sockets of one process by name. The zero value has
// none. Its methods are safe for concurrent use.
type Listeners struct {
	mu      sync.Mutex
	open    map[string]*listener
	stopped bool
}

// Add makes l the socket of that name and returns the listener to serve it by;
// closing it takes the socket out again. A name may be added again once its
// socket is closed. l must be a *net.TCPListener; after an error it is still the
// caller's.
func (d *Listeners) Add(name string, l net.Listener) (net.Listener, error) {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("door %s: a %T cannot be handed over", name, l)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return nil, fmt.Errorf("door %s: %w", name, ErrStopped)
	}
	if d.open == nil {
		d.open = make(map[string]*listener)
	}
	if d.open[name] != nil {
		return nil, fmt.Errorf("door %s is open", name)
	}
	g := &listener{TCPListener: tcp, set: d, name: name, closed: make(chan struct{}), parked: make(chan struct{})}
	d.open[name] = g
	return g, nil
}

// parkTimeout bounds Leave's wait for a server that does not accept at the moment.
const parkTimeout = time.Second

// StopAccepting stops accepting at every door, without the servers behind them taking
// notice: their connections go on, and their Accept waits until they are closed.
// What was accepted before is known to its server when Leave returns: that has come
// back for more, or has not within a second. No door can be added any more.
func (d *Listeners) StopAccepting() {
	late := time.NewTimer(parkTimeout)
	defer late.Stop()
	d.stopAccepting(late.C)
}

// stopAccepting is Leave that waits until it is late.
func (d *Listeners) stopAccepting(late <-chan time.Time) {
	d.mu.Lock()
	d.stopped = true
	gates := d.open
	d.open = nil
	d.mu.Unlock()
	for _, g := range gates {
		g.stop()
	}
	for _, g := range gates {
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

// files are duplicates of the open sockets, with their names in order.
func (d *Listeners) files() (names []string, files []*os.File, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.open {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f, err := d.open[name].File()
		if err != nil {
			closeAll(files)
			return nil, nil, fmt.Errorf("door %s: %w", name, err)
		}
		files = append(files, f)
	}
	return names, files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// listener is one listener that can be left.
//
// It overrides what servers call; nobody reaches the rest.
type listener struct {
	*net.TCPListener
	set       *Listeners
	name      string
	closeOnce sync.Once
	closed    chan struct{} // closed by Close

	accepting atomic.Bool   // somebody has
	parkOnce  sync.Once     // closes rests
	parked    chan struct{} // closed when Accept has found that the gate is left

	mu      sync.Mutex
	stopped bool // left
}

// Accept implements net.Listener.
func (g *listener) Accept() (net.Conn, error) {
	g.accepting.Store(true)
	conn, err := g.TCPListener.Accept()
	if err == nil {
		return conn, nil
	}
	g.mu.Lock()
	gone := g.stopped
	g.mu.Unlock()
	if gone {
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
	return g.TCPListener.Close()
}

func (g *listener) stop() {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.TCPListener.Close()
}
