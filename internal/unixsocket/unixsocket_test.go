package unixsocket

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestAttackDirectory prepares directories that other users may enter, or own.
func TestAttackDirectory(t *testing.T) {
	for what, mode := range map[string]os.FileMode{"mode 0700; it has mode 0711": 0o711, "it has mode 0710": 0o710, "belongs to user 65534": 0o700} {
		dir := filepath.Join(t.TempDir(), "blocks")
		testkit.NoError(t, os.Mkdir(dir, 0o700))
		testkit.NoError(t, os.Chmod(dir, mode))
		if mode == 0o700 && os.Chown(dir, 65534, 65534) != nil {
			continue // only root can
		}
		if err := PrepareDir(dir); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("error %v, want %q", err, what)
		}
	}
}

// A connection of another user is closed, and the next one is served.
func TestAttackOtherUser(t *testing.T) {
	l := testkit.Must(Listen(filepath.Join(t.TempDir(), "s"), slog.New(slog.DiscardHandler)))
	defer l.Close()
	l.user++ // the test's own user is another one now
	done := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	c := testkit.Must(net.Dial("unix", l.path))
	defer c.Close()
	testkit.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("another user read %d bytes, error %v", n, err)
	}
	select {
	case err := <-done:
		t.Errorf("another user's connection was accepted (error %v)", err)
	default:
	}
	testkit.NoError(t, l.Close())
	testkit.WantError(t, <-done, "closed")
}

// An unknown user is not 0, which is root.
func TestUnknownPeer(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	testkit.NoError(t, err)
	defer l.Close()
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	testkit.NoError(t, err)
	testkit.NoError(t, c.Close())
	if uid, err := PeerUser(c); uid != -1 || err == nil {
		t.Errorf("a closed connection: user %d, error %v", uid, err)
	}
}
