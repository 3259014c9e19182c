package cuda

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// Config configures a Transport. The transport uses the GPU of the engine's memory, which
// Attach or Allocate made; the caller closes the GPU after Run.
type Config = lease.LocalConfig

// Transport carries blocks to and from the pool of one engine. It is safe for concurrent
// use.
type Transport struct {
	lease.Local
	gpu atomic.Pointer[GPU] // the GPU of the engine's pool when it was last used
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Device    = (*Memory)(nil)
)

// New returns a transport that serves while Run runs.
func New(c Config) (*Transport, error) {
	t := &Transport{}
	t.Welcome, t.DropIdle = t.welcome, t.unmapIdle
	t.Check = func(m *transport.Memory) error {
		_, err := t.deviceMemory(m)
		return err
	}
	if err := t.Init("cuda", c); err != nil {
		return nil, err
	}
	return t, nil
}

// Probe creates the directory and makes the GPU read some of the engine's memory. It
// fails while the engine is away.
func (t *Transport) Probe(context.Context) error {
	return t.ProbeWith(func() error {
		m, err := transport.HoldMemory(t.Pool)
		if err != nil {
			return err
		}
		defer m.Release()
		d, err := t.deviceMemory(m)
		if err != nil {
			return err
		}
		return d.CheckDevice()
	})
}

// deviceMemory returns the GPU memory behind a pool.
func (t *Transport) deviceMemory(m *transport.Memory) (*Memory, error) {
	d, ok := m.Device.(*Memory)
	if !ok {
		return nil, fmt.Errorf("%w: it is not the memory of a GPU; use shm, verbs or tcp for host memory", transport.ErrUnsupportedMemory)
	}
	if previous := t.gpu.Swap(d.gpu); previous != nil && previous != d.gpu { // the engine has another GPU now
		previous.unmapIdle(time.Now())
	}
	return d, nil
}

// unmapIdle unmaps the pools of sources that have been unused since before.
func (t *Transport) unmapIdle(before time.Time) {
	if g := t.gpu.Load(); g != nil {
		g.unmapIdle(before)
	}
}

// welcome returns the handle and the descriptor by which a receiver maps the memory of a
// lease.
func (t *Transport) welcome(lease *lease.Lease) ([]byte, *os.File, error) {
	m, err := t.deviceMemory(lease.Memory)
	if err != nil {
		return nil, nil, err
	}
	f, err := m.Descriptor()
	return m.handle.Append(nil), f, err
}
