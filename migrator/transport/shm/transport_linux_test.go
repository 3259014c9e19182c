package shm

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// newPool returns a memory in a memfd, as an engine's pool is.
func newPool(t testing.TB, l transport.Layout) *transport.Memory {
	t.Helper()
	size := l.MinSize()
	fd := testkit.Must(unix.MemfdCreate("pool", unix.MFD_CLOEXEC))
	f := os.NewFile(uintptr(fd), "pool")
	testkit.NoError(t, f.Truncate(size))
	b := testkit.Must(unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	return &transport.Memory{Layout: l, Bytes: b, File: f, Unmap: func() { unix.Munmap(b); f.Close() }}
}

func newEnd(t testing.TB, dir string, l transport.Layout) transporttest.End {
	t.Helper()
	m := newPool(t, l)
	tr := testkit.Must(New(Config{Dir: dir, Pool: transporttest.Pool{M: m}}))
	return transporttest.End{Transport: tr, Memory: m, Unbound: true}
}

func newPair(t *testing.T, source, target transport.Layout) transporttest.Pair {
	dir := transporttest.SocketDir(t)
	return transporttest.Pair{Source: newEnd(t, dir, source), Target: newEnd(t, dir, target)}
}

func TestConformance(t *testing.T) { transporttest.Run(t, newPair) }

func TestAllocations(t *testing.T) { transporttest.RunAllocations(t, newPair) }

// TestUnsupportedMemory checks that a pool on a device is reported as unsupported by
// every call.
func TestUnsupportedMemory(t *testing.T) {
	_, m := transporttest.NewFakeDevice(transport.Layout{Blocks: 2, Regions: []transport.Region{{Stride: 64, Bytes: 64}}})
	defer m.Close()
	m.Bytes = nil
	tr := testkit.Must(New(Config{Dir: transporttest.SocketDir(t), Pool: transporttest.Pool{M: m}}))
	_, exported := tr.Export(transport.Grant{})
	_, opened := tr.Open(t.Context(), "r", transport.Offer{Transport: "shm"})
	for what, err := range map[string]error{"Probe": tr.Probe(t.Context()), "Export": exported, "Open": opened} {
		if !errors.Is(err, transport.ErrUnsupportedMemory) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
