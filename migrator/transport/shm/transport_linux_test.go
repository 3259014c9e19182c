package shm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// pool returns a memory in a memfd, as an engine's pool is.
func pool(t testing.TB, l transport.Layout) *transport.Memory {
	t.Helper()
	size := transporttest.Size(l)
	fd, err := unix.MemfdCreate("pool", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "pool")
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	return &transport.Memory{Layout: l, Bytes: b, File: f, Unmap: func() { unix.Munmap(b); f.Close() }}
}

func end(t testing.TB, dir string, l transport.Layout) transporttest.End {
	t.Helper()
	m := pool(t, l)
	tr, err := New(Config{Dir: dir, Pool: transporttest.Pool{M: m}})
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.End{Transport: tr, Memory: m}
}

// short returns a directory whose path is short enough for sockets.
func short(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "pull")
}

func ends(t *testing.T, source, target transport.Layout) transporttest.Pair {
	dir := short(t)
	return transporttest.Pair{Source: end(t, dir, source), Target: end(t, dir, target)}
}

func TestConformance(t *testing.T) { transporttest.Run(t, ends) }

func TestAllocations(t *testing.T) { transporttest.RunAllocations(t, ends) }

// TestUnsuited says that a pool on a device is nothing that is broken, and nothing to be
// handed on or pulled into.
func TestUnsuited(t *testing.T) {
	_, m := transporttest.NewFakeDevice(transport.Layout{Blocks: 2, Regions: []transport.Region{{Stride: 64, Bytes: 64}}})
	defer m.Close()
	m.Bytes = nil
	tr, err := New(Config{Dir: short(t), Pool: transporttest.Pool{M: m}})
	if err != nil {
		t.Fatal(err)
	}
	_, exported := tr.Export(transport.Grant{})
	_, opened := tr.Open(t.Context(), "r", transport.Offer{Transport: "shm"})
	for what, err := range map[string]error{"Probe": tr.Probe(t.Context()), "Export": exported, "Open": opened} {
		if !errors.Is(err, transport.ErrUnsupportedMemory) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
