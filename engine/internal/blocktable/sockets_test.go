package blocktable

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Stale sockets are replaced, another engine's sockets are not touched, and no socket remains in
// the end.
func TestSockets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	run := func() (stop func() error) {
		table, _ := newTable(t, dir)
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan error, 1)
		go func() { over <- table.Run(ctx) }()
		for {
			if c, err := net.Dial("unix", filepath.Join(dir, PoolSocket)); err == nil {
				c.Close()
				break
			}
			select {
			case err := <-over:
				over <- err
				return func() error { cancel(); return <-over }
			case <-time.After(time.Millisecond):
			}
		}
		return func() error { cancel(); return <-over }
	}
	stop := run()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
	for _, name := range []string{BlocksSocket, PoolSocket} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if err := run()(); err == nil || !strings.Contains(err.Error(), "another process serves") {
		t.Errorf("two engines in one directory: %v", err)
	}
	conn, err := net.Dial("unix", filepath.Join(dir, PoolSocket))
	if err != nil {
		t.Fatal(err)
	}
	b, rights := make([]byte, 8), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(b, rights)
	if err != nil || n != 1 || m == 0 {
		t.Errorf("%d bytes, %d of rights, %v", n, m, err)
	}
	conn.Close()
	if messages, err := unix.ParseSocketControlMessage(rights[:m]); err == nil {
		fds, _ := unix.ParseUnixRights(&messages[0])
		for _, fd := range fds {
			if err := unix.Ftruncate(fd, 0); err == nil {
				t.Error("a client can take the memory away")
			}
			unix.Close(fd)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// A killed engine leaves these files.
	for _, name := range []string{BlocksSocket, PoolSocket} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	if err := run()(); err != nil {
		t.Errorf("stale sockets: %v", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := run()(); err == nil || !strings.Contains(err.Error(), "mode 0700; it has mode 0777") {
		t.Errorf("an open directory: %v", err)
	}
}
