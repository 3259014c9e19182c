package shm

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

var small = transport.Layout{Blocks: 512, Regions: []transport.Region{{Stride: 4096, Bytes: 4096}}}

// TestMain also runs the source in another process of the tests.
func TestMain(m *testing.M) {
	transporttest.RunSource(func(dir string) (transporttest.End, string, error) {
		return newEnd(&testing.T{}, dir, small), "", nil
	})
	os.Exit(m.Run())
}

// TestSourceProcessIsKilled pulls from another process, and checks that a pull fails
// after that process was killed, and that the next source removes the socket it left.
func TestSourceProcessIsKilled(t *testing.T) {
	dir := transporttest.SocketDir(t)
	offer, _, kill := transporttest.StartSource(t, dir)
	target := newEnd(t, dir, small)
	defer target.Memory.Close()
	p := testkit.Must(target.Transport.Open(t.Context(), transporttest.Receiver, offer))
	defer p.Close()
	zero := transporttest.HeapMemory(small)
	if _, err := p.Pull(t.Context(), transporttest.OrderedPlan(zero, 0, 0, small.Blocks)); err != nil {
		t.Errorf("pull from another process: %v", err)
	}
	kill()
	if _, err := p.Pull(t.Context(), transporttest.OrderedPlan(zero, 0, 0, 1)); err == nil {
		t.Error("a pull from a killed process succeeded")
	}
	// The next source of the directory removes the socket of the killed one.
	past := time.Now().Add(-time.Hour)
	foreign := newStaleSocket(t, filepath.Join(dir, "other.sock"))
	for _, path := range []string{offer.Address, foreign} {
		testkit.NoError(t, os.Chtimes(path, past, past))
	}
	running := func() string { // runs another source, and returns its socket
		l := transporttest.Start(t, transporttest.Pair{Source: newEnd(t, dir, small), Target: newEnd(t, transporttest.SocketDir(t), small)})
		return l.Export(l.Grant()).Address
	}
	path := running()
	if _, err := os.Stat(offer.Address); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of the killed source: %v", err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("the socket of another program: %v", err)
	}
	testkit.NoError(t, os.Chtimes(path, past, past))
	running()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the socket of a running source: %v", err)
	}
}

// newStaleSocket makes a socket without a listener.
func newStaleSocket(t *testing.T, path string) string {
	t.Helper()
	l := testkit.Must(net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}))
	l.SetUnlinkOnClose(false)
	testkit.NoError(t, l.Close())
	return path
}

// TestAddresses checks that Open accepts nothing but the path of a source's socket in a
// private directory.
func TestAddresses(t *testing.T) {
	dir := transporttest.SocketDir(t)
	target := newEnd(t, dir, small)
	defer target.Memory.Close()
	open := filepath.Dir(dir)
	testkit.NoError(t, os.Chmod(open, 0o755))
	for _, address := range []string{"", "a.shm", "/run/docker", filepath.Join(open, "a.shm"), "/" + strings.Repeat("x", 100) + ".shm", filepath.Join(dir, "missing.shm")} {
		if _, err := target.Transport.Open(t.Context(), "b", transport.Offer{Transport: "shm", Address: address}); err == nil {
			t.Errorf("%q is accepted", address)
		}
	}
	if _, err := New(Config{Dir: "relative", Pool: transporttest.Pool{}}); err == nil {
		t.Error("a relative directory is accepted")
	}
	testkit.NoError(t, os.MkdirAll(dir, 0o700))
	testkit.NoError(t, os.Chmod(dir, 0o750))
	if err := target.Transport.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("a directory that other users may enter: %v", err)
	}
}

// TestDescriptorIsReadOnly checks that the descriptor which a source sends cannot be used
// to write its pool.
func TestDescriptorIsReadOnly(t *testing.T) {
	m := newPool(t, small)
	defer m.Close()
	f := testkit.Must(openReadOnly(m))
	defer f.Close()
	if _, err := f.WriteAt([]byte{1}, 0); err == nil {
		t.Error("the descriptor is writable")
	}
	if _, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("the descriptor can be mapped for writing")
	}
}

// TestPoolShrinks checks that a pool which becomes shorter than its layout fails pulls,
// and nothing else.
func TestPoolShrinks(t *testing.T) {
	dir := transporttest.SocketDir(t)
	for _, whose := range []string{"source", "target"} {
		l := transporttest.Start(t, transporttest.Pair{Source: newEnd(t, dir, small), Target: newEnd(t, dir, small)})
		p, plan := l.Open(), l.Plan(3, 1)
		shorter := map[string]*transport.Memory{"source": l.Source.Memory, "target": l.Target.Memory}[whose]
		testkit.NoError(t, shorter.File.Truncate(4096))
		if _, err := l.Pull(p, plan); err == nil || !strings.Contains(err.Error(), "shorter") {
			t.Errorf("%s: %v", whose, err)
		}
		l.Stop()
	}
}

// TestInvalidWelcomes checks that Open fails and leaves nothing open, whatever a source
// sends.
func TestInvalidWelcomes(t *testing.T) {
	dir := transporttest.SocketDir(t)
	testkit.NoError(t, os.MkdirAll(dir, 0o700))
	m := newPool(t, small)
	defer m.Close()
	target := newEnd(t, dir, small)
	defer target.Memory.Close()
	good := testkit.Must(lease.AppendWelcome(nil, small, int64(len(m.Bytes))))
	larger := testkit.Must(lease.AppendWelcome(nil, small, int64(len(m.Bytes))+1))
	pipe, _, err := os.Pipe()
	testkit.NoError(t, err)
	defer pipe.Close()
	fd := int(m.File.Fd())
	for name, c := range map[string]struct {
		packet []byte
		files  []int
	}{
		"no file":          {good, nil},
		"two files":        {good, []int{fd, fd}},
		"many files":       {good, []int{fd, fd, fd, fd, fd, fd}},
		"a pipe":           {good, []int{int(pipe.Fd())}},
		"too small a file": {larger, []int{fd}},
		"half a welcome":   {good[:30], []int{fd}},
		"noise":            {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), []int{fd}},
		"nothing":          {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "liar.shm")
			l := testkit.Must(net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}))
			defer l.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := l.AcceptUnix()
				if err != nil {
					return
				}
				defer conn.Close()
				conn.Read(make([]byte, lease.MaxHello))
				var rights []byte
				if c.files != nil {
					rights = unix.UnixRights(c.files...)
				}
				if c.packet != nil {
					conn.WriteMsgUnix(c.packet, rights, nil)
				}
			}()
			p, err := target.Transport.Open(t.Context(), "b", transport.Offer{Transport: "shm", Address: path})
			if err == nil {
				p.Close()
				t.Error("Open succeeded")
			}
			<-done
		})
	}
	if n := len(target.Transport.(*Transport).mappings.all); n != 0 {
		t.Errorf("%d mappings are left", n)
	}
}

func TestMappingsAreUsedAgain(t *testing.T) {
	var ms mappings
	open := func(m *transport.Memory) *mapping {
		t.Helper()
		got := testkit.Must(ms.open(m.File, int64(len(m.Bytes))))
		return got
	}
	a := newPool(t, small)
	defer a.Close()
	now := time.Unix(1000, 0)

	running := false
	ms.keeps = func() bool { return running }
	ms.release(open(a), now)
	if len(ms.all) != 0 {
		t.Error("a transport that does not run keeps an idle mapping")
	}
	running = true
	first := open(a)
	if second := open(a); second != first {
		t.Error("one pool is mapped twice")
	}
	ms.release(first, now)
	ms.release(first, now)
	if again := open(a); again != first {
		t.Error("a kept mapping is not used again")
	}
	ms.unmapIdle(now.Add(time.Hour))
	if len(ms.all) != 1 {
		t.Error("a mapping in use was unmapped")
	}
	ms.release(first, now)
	for range maxIdle { // the oldest is unmapped
		m := newPool(t, small)
		defer m.Close()
		now = now.Add(time.Second)
		ms.release(open(m), now)
	}
	if len(ms.all) != maxIdle || ms.all[0] == first {
		t.Errorf("%d idle mappings, the oldest still there: %v", len(ms.all), ms.all[0] == first)
	}
	ms.unmapIdle(now)
	if len(ms.all) != 1 {
		t.Errorf("%d mappings are left, want 1", len(ms.all))
	}
	ms.unmapIdle(now.Add(1))
	if len(ms.all) != 0 {
		t.Error("idle mappings are left after the transport has stopped")
	}
}
