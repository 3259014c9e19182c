package lease

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/unixsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// TestOtherUser checks that both ends reject a peer of another user. It requires root.
func TestOtherUser(t *testing.T) {
	testkit.SkipUnlessRoot(t)
	top, err := os.MkdirTemp("", "local") // the path of t.TempDir is too long for sockets
	testkit.NoError(t, err)
	defer os.RemoveAll(top)
	dir := filepath.Join(top, "pull")
	testkit.NoError(t, os.MkdirAll(dir, 0o700))
	testkit.NoError(t, os.Chmod(top, 0o755))
	testkit.NoError(t, os.Chown(dir, testkit.OtherUser, testkit.OtherUser))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(filepath.Dir(dir), "pair.sock"), Net: "unixpacket"})
	testkit.NoError(t, err)
	defer l.Close()
	testkit.NoError(t, os.Chmod(l.Addr().String(), 0o777))
	testkit.RunAs(t, testkit.OtherUser, func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: l.Addr().String()})
	})
	conn, err := l.AcceptUnix()
	testkit.NoError(t, err)
	if err := unixsocket.CheckPeer(conn); err == nil || !strings.Contains(err.Error(), "65534") {
		t.Errorf("another user's connection: %v", err)
	}
	conn.Close()

	if _, err := (&Local{suffix: ".test"}).OpenSession(t.Context(), "b", transport.Offer{Address: filepath.Join(dir, "x.test")}); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("a socket in another user's directory: %v", err)
	}
}
