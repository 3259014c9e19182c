package kvport

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestAttackEngineDirectory starts engines in directories that other users may enter, or own: the
// client uses none of them, and says what to do.
func TestAttackEngineDirectory(t *testing.T) {
	for what, change := range map[string]func(dir string) error{
		"open to others": func(dir string) error { return os.Chmod(dir, 0o755) },
		"of another user": func(dir string) error {
			if os.Geteuid() != 0 {
				return os.Chmod(dir, 0o777)
			}
			return os.Chown(dir, testkit.OtherUser, testkit.OtherUser)
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := &fakeEngine{}
			f.start(t, privateDir(t))
			testkit.NoError(t, change(f.dir))
			requireRefused(t, f.dir, "must be a directory of this user with mode 0700")
		})
	}
}

// TestAttackEngineOfAnotherUser listens as another user in a directory that becomes private
// afterwards. It requires root.
func TestAttackEngineOfAnotherUser(t *testing.T) {
	testkit.SkipUnlessRoot(t)
	dir, err := os.MkdirTemp("", "blocks") // where another user may go
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	testkit.NoError(t, os.Chmod(dir, 0o777))
	testkit.RunAs(t, testkit.OtherUser, func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		return errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, api.Socket)}), unix.Listen(fd, 8))
	})
	testkit.NoError(t, os.Chmod(dir, 0o700))
	requireRefused(t, dir, "the peer runs as user 65534")
}
