package localsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Private makes a directory that only this user may enter, or says why the one
// that is there is not.
func Private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return isPrivate(dir)
}

func isPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ok || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s must be a directory of this user with mode 0700", dir)
	}
	return nil
}

// fresh is how young a socket may be whose owner does not listen yet.
const fresh = 10 * time.Second

// sweep removes the sockets of sources that were killed.
func sweep(dir, suffix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		if err != nil || !strings.HasSuffix(path, suffix) || info.Mode().Type() != os.ModeSocket || time.Since(info.ModTime()) < fresh {
			continue
		}
		c, err := net.DialTimeout("unixpacket", path, helloTimeout)
		if err == nil {
			c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}

// sameUser says why the process at the other end is not one of this user.
func sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the peer runs as user %d, this side as %d", cred.Uid, os.Geteuid())
	}
	return nil
}
