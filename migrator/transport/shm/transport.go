package shm

import (
	"context"
	"fmt"
	"os"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

const (
	checkEvery = 64 << 20 // bytes copied between two checks of the grant
	maxIdle    = 4        // unused mappings that are kept
)

// Config configures a Transport. A source sends the File of its engine's memory to receivers.
type Config = lease.LocalConfig

// Transport carries blocks to and from the pool of one engine. It is safe for concurrent
// use.
type Transport struct {
	lease.Local
	mappings mappings
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that serves while Run runs.
func New(c Config) (*Transport, error) {
	t := &Transport{}
	t.mappings.keeps = t.Serves
	t.Check, t.Welcome, t.DropIdle = requireFile, welcome, t.mappings.unmapIdle
	if err := t.Init("shm", c); err != nil {
		return nil, err
	}
	return t, nil
}

// Probe creates the directory and checks the engine's memory if the engine is present.
func (t *Transport) Probe(context.Context) error {
	return t.ProbeWith(func() error {
		m, ok := t.Pool.Memory()
		if !ok || !m.Hold() {
			return nil
		}
		defer m.Release()
		f, err := openReadOnly(m)
		if err != nil {
			return err
		}
		return f.Close()
	})
}

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
