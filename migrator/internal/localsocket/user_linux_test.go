package localsocket

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestOtherUser checks that both ends reject a peer of another user. It requires root.
func TestOtherUser(t *testing.T) {
	testkit.SkipUnlessRoot(t)
	const otherUser = 65534
	top, err := os.MkdirTemp("", "local") // the path of t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	dir := filepath.Join(top, "pull")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, otherUser, otherUser); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(filepath.Dir(dir), "pair.sock"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(l.Addr().String(), 0o777); err != nil {
		t.Fatal(err)
	}
	connected := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // forever: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, otherUser, otherUser, otherUser); errno != 0 {
			connected <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: l.Addr().String()})
			unix.Close(fd)
		}
		connected <- err
	}()
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckPeer(conn); err == nil || !strings.Contains(err.Error(), "65534") {
		t.Errorf("another user's connection: %v", err)
	}
	conn.Close()

	if _, err := Open(t.Context(), ".test", "b", transport.Offer{Address: filepath.Join(dir, "x.test")}); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("a socket in another user's directory: %v", err)
	}
}
