package shm

import (
	"context"
	"fmt"
	"os"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// suffix distinguishes the sockets of this transport from others in the directory.
const suffix = ".shm"

// Transport carries blocks to and from the pool of one engine. It is safe for concurrent
// use.
type Transport struct {
	config   Config
	source   lease.Source
	mappings mappings
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that serves while Run runs.
func New(c Config) (*Transport, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	return &Transport{config: c, source: lease.Source{Transport: "shm", Pool: c.Pool, Check: requireFile, Logger: c.Logger}}, nil
}

// Name returns "shm".
func (t *Transport) Name() string { return "shm" }

// Probe creates the directory and checks the engine's memory if the engine is present.
func (t *Transport) Probe(context.Context) error {
	if err := t.probe(); err != nil {
		return fmt.Errorf("shm transport: %w", err)
	}
	return nil
}

func (t *Transport) probe() error {
	if err := unixsocket.PrepareDir(t.config.Dir); err != nil {
		return err
	}
	m, ok := t.config.Pool.Memory()
	if !ok || !m.Hold() {
		return nil
	}
	defer m.Release()
	f, err := openReadOnly(m)
	if err != nil {
		return err
	}
	return f.Close()
}

// CanReach reports whether both ends are on the same host.
func (t *Transport) CanReach(from, to string) bool { return from == to && from != "" }

// Run serves until ctx ends and unmaps idle mappings.
func (t *Transport) Run(ctx context.Context) error {
	t.mappings.setKeepIdle(true)
	defer t.mappings.setKeepIdle(false)
	err := lease.ServeSocket(ctx, lease.SocketConfig{
		Dir: t.config.Dir, Suffix: suffix, Source: &t.source, Welcome: welcome, Logger: t.config.Logger,
		IdleTimeout: idleMapping, DropIdle: t.mappings.unmapIdle,
	})
	if err != nil {
		return fmt.Errorf("shm transport: %w", err)
	}
	return nil
}

// Export makes an offer. See transport.Transport.
func (t *Transport) Export(g transport.Grant) (transport.Offer, error) { return t.source.Export(g) }

// Announce does nothing: a receiver maps the whole pool.
func (t *Transport) Announce(string, []uint32) {}

// Revoke ends the grants of a migration. See transport.Transport.
func (t *Transport) Revoke(migration string) { t.source.Revoke(migration) }

// requireFile returns an error unless a memory is shared memory.
func requireFile(m *transport.Memory) error {
	if m.File == nil {
		return fmt.Errorf("%w: it is not shared memory; use cuda, verbs or tcp for the memory of a GPU", transport.ErrUnsupportedMemory)
	}
	return nil
}

// welcome returns the descriptor that the receiver of a lease maps.
func welcome(lease *lease.Lease) ([]byte, *os.File, error) {
	f, err := openReadOnly(lease.Memory)
	return nil, f, err
}

// openReadOnly opens the file of a memory again, read-only: a receiver cannot make a
// writable mapping of that descriptor.
func openReadOnly(m *transport.Memory) (*os.File, error) {
	if err := requireFile(m); err != nil {
		return nil, err
	}
	raw, err := m.File.SyscallConn()
	if err != nil {
		return nil, err
	}
	var f *os.File
	var openErr error
	if err := raw.Control(func(fd uintptr) { f, openErr = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) }); err != nil {
		return nil, err
	}
	return f, openErr
}
