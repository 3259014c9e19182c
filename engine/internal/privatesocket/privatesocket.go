// Package privatesocket makes the Unix sockets on which an engine serves its migrator: in a directory
// that only its user may enter, for processes of that user.
package privatesocket

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// dialTimeout bounds the check whether a socket's engine is alive.
const dialTimeout = time.Second

// MaxPath is the maximum length of a socket's path in bytes on all systems.
const MaxPath = 103

// Prepare creates the directory, or checks that it belongs to this user and that no other user may
// enter it.
func Prepare(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d; choose a directory of user %d", dir, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%s is open to other users (mode %04o); chmod 700 it", dir, st.Mode&0o7777)
	}
	return nil
}

// Listener is a Unix socket that accepts only connections of the same user.
type Listener struct {
	*net.UnixListener
	log  *slog.Logger
	user int // whose connections it accepts
	path string
	made os.FileInfo // the socket's file, to avoid removing another one
}

// Listen creates a socket and replaces a stale one. The logger logs clients that are turned away.
func Listen(path string, log *slog.Logger) (*Listener, error) {
	if _, err := os.Lstat(path); err == nil {
		c, err := net.DialTimeout("unix", path, dialTimeout)
		if err == nil {
			c.Close()
			return nil, fmt.Errorf("another engine serves %s; use a directory per engine", path)
		}
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return nil, fmt.Errorf("check whether another engine serves %s: %w", path, err) // it may be alive
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // another engine may have replaced it by then
	made, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Listener{UnixListener: l, log: log, user: os.Geteuid(), path: path, made: made}, nil
}

// Accept returns the next connection of the same user.
func (l *Listener) Accept() (net.Conn, error) { return l.AcceptUser() }

// AcceptUser is Accept for callers that pass descriptors.
func (l *Listener) AcceptUser() (*net.UnixConn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUser(c)
		if err == nil && uid == l.user {
			return c, nil
		}
		l.log.Warn("a client of a Unix socket was turned away", "socket", l.path, "uid", uid, "error", err)
		c.Close()
	}
}

// peerUser returns the user of a connection's peer, or -1 and an error.
func peerUser(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid := -1 // 0 is root
	failed := raw.Control(func(fd uintptr) { uid, err = userOf(int(fd)) })
	return uid, errors.Join(failed, err)
}

// Close stops listening and removes the socket. Further calls do nothing.
func (l *Listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
		os.Remove(l.path)
	}
	err := l.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
