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

// ErrLeft says that the sockets belong to another process now.
var ErrLeft = errors.New("another process has taken the socket over")

// Doors are the listening sockets of one process by name. The zero value has
// none. Its methods are safe for concurrent use.
type Doors struct {
	mu   sync.Mutex
	open map[string]*gate
	left bool
}

// Add makes l the socket of that name and returns the listener to serve it by;
// closing it takes the socket out again. A name may be added again once its
// socket is closed. l must be a *net.TCPListener; after an error it is still the
// caller's.
func (d *Doors) Add(name string, l net.Listener) (net.Listener, error) {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("door %s: a %T cannot be handed over", name, l)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left {
		return nil, fmt.Errorf("door %s: %w", name, ErrLeft)
	}
	if d.open == nil {
		d.open = make(map[string]*gate)
	}
	if d.open[name] != nil {
		return nil, fmt.Errorf("door %s is open", name)
	}
	g := &gate{TCPListener: tcp, doors: d, name: name, shut: make(chan struct{}), rests: make(chan struct{})}
	d.open[name] = g
	return g, nil
}

// restTimeout bounds Leave's wait for a server that does not accept at the moment.
const restTimeout = time.Second

// Leave stops accepting at every door, without the servers behind them taking
// notice: their connections go on, and their Accept waits until they are closed.
// What was accepted before is known to its server when Leave returns: that has come
// back for more, or has not within a second. No door can be added any more.
func (d *Doors) Leave() {
	late := time.NewTimer(restTimeout)
	defer late.Stop()
	d.leave(late.C)
}

// leave is Leave that waits until it is late.
func (d *Doors) leave(late <-chan time.Time) {
	d.mu.Lock()
	d.left = true
	gates := d.open
	d.open = nil
	d.mu.Unlock()
	for _, g := range gates {
		g.leave()
	}
	for _, g := range gates {
		if !g.accepts.Load() {
			continue
		}
		select {
		case <-g.rests:
		case <-g.shut:
		case <-late:
			return
		}
	}
}

// files are duplicates of the open sockets, with their names in order.
func (d *Doors) files() (names []string, files []*os.File, err error) {
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

// gate is one listener that can be left.
//
// It overrides what servers call; nobody reaches the rest.
type gate struct {
	*net.TCPListener
	doors *Doors
	name  string
	once  sync.Once
	shut  chan struct{} // closed by Close

	accepts atomic.Bool   // somebody has
	rest    sync.Once     // closes rests
	rests   chan struct{} // closed when Accept has found that the gate is left

	mu   sync.Mutex
	gone bool // left
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	g.accepts.Store(true)
	conn, err := g.TCPListener.Accept()
	if err == nil {
		return conn, nil
	}
	g.mu.Lock()
	gone := g.gone
	g.mu.Unlock()
	if gone {
		g.rest.Do(func() { close(g.rests) })
		<-g.shut
		err = net.ErrClosed
	}
	return nil, err
}

// Close implements net.Listener.
func (g *gate) Close() error {
	g.doors.mu.Lock()
	if g.doors.open[g.name] == g {
		delete(g.doors.open, g.name)
	}
	g.doors.mu.Unlock()
	g.once.Do(func() { close(g.shut) })
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return nil
	}
	return g.TCPListener.Close()
}

func (g *gate) leave() {
	g.mu.Lock()
	g.gone = true
	g.mu.Unlock()
	g.TCPListener.Close()
}
