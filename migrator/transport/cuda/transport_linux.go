package cuda

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// Transport carries blocks to and from the pool of one engine. It is safe for concurrent
// use.
type Transport struct {
	config Config
	source lease.Source
	gpu    atomic.Pointer[GPU] // the GPU of the engine's pool when it was last used
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Device    = (*Memory)(nil)
)

// New returns a transport that serves while Run runs.
func New(c Config) (*Transport, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	t := &Transport{config: c}
	t.source = lease.Source{Transport: "cuda", Pool: c.Pool, Logger: c.Logger, Check: func(m *transport.Memory) error {
		_, err := t.deviceMemory(m)
		return err
	}}
	return t, nil
}

// Name returns "cuda".
func (t *Transport) Name() string { return "cuda" }

// Probe creates the directory and makes the GPU read some of the engine's memory. It
// fails while the engine is away.
func (t *Transport) Probe(context.Context) error {
	err := unixsocket.PrepareDir(t.config.Dir)
	if err == nil {
		err = t.probeMemory()
	}
	if err != nil {
		return fmt.Errorf("cuda transport: %w", err)
	}
	return nil
}

func (t *Transport) probeMemory() error {
	m, err := transport.HoldMemory(t.config.Pool)
	if err != nil {
		return err
	}
	defer m.Release()
	d, err := t.deviceMemory(m)
	if err != nil {
		return err
	}
	return d.CheckDevice()
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

// CanReach reports whether both ends are on the same host. Whether their GPUs reach each
// other is checked by Open.
func (t *Transport) CanReach(from, to string) bool { return from == to && from != "" }

// Run serves until ctx ends and unmaps idle mappings.
func (t *Transport) Run(ctx context.Context) error {
	err := lease.ServeSocket(ctx, lease.SocketConfig{
		Dir: t.config.Dir, Suffix: suffix, Source: &t.source, Welcome: t.welcome, Logger: t.config.Logger,
		IdleTimeout: idleMapping, DropIdle: func(before time.Time) {
			if g := t.gpu.Load(); g != nil {
				g.unmapIdle(before)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("cuda transport: %w", err)
	}
	return nil
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

// Export makes an offer. See transport.Transport.
func (t *Transport) Export(g transport.Grant) (transport.Offer, error) { return t.source.Export(g) }

// Announce does nothing: a receiver maps the whole pool.
func (t *Transport) Announce(string, []uint32) {}

// Revoke ends the grants of a migration. See transport.Transport.
func (t *Transport) Revoke(migration string) { t.source.Revoke(migration) }
