package unixsocket

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"
)

// aliveTimeout bounds the check whether a socket is served.
const aliveTimeout = time.Second

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
		c, err := net.DialTimeout("unix", path, aliveTimeout)
		if err == nil {
			c.Close()
			return nil, fmt.Errorf("another process serves %s; use a directory per process", path)
		}
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return nil, fmt.Errorf("check whether another process serves %s: %w", path, err) // it may be alive
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // another process may have replaced it by then
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
		uid, err := PeerUser(c)
		if err == nil && uid == l.user {
			return c, nil
		}
		l.log.Warn("a client of a Unix socket was turned away", "socket", l.path, "uid", uid, "error", err)
		c.Close()
	}
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
