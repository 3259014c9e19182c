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

	"github.com/cascadeinfer/cascade/migrator/internal/pull"
)

// MakePrivateDir creates a directory that only this user may enter. It fails if the
// directory exists and others may enter it.
func MakePrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return checkPrivateDir(dir)
}

func checkPrivateDir(dir string) error {
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

// minStaleAge is the age below which a socket without a listener is kept: its owner may
// not listen yet.
const minStaleAge = 10 * time.Second

// removeStaleSockets removes the sockets of sources that were killed.
func removeStaleSockets(dir, suffix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		if err != nil || !strings.HasSuffix(path, suffix) || info.Mode().Type() != os.ModeSocket || time.Since(info.ModTime()) < minStaleAge {
			continue
		}
		c, err := net.DialTimeout("unixpacket", path, pull.HelloTimeout)
		if err == nil {
			c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}

// checkSameUser returns an error unless the peer process runs as the user of this one.
func checkSameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the peer runs as user %d, this process as user %d", cred.Uid, os.Geteuid())
	}
	return nil
}
