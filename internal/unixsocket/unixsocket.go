//go:build unix

// Package unixsocket connects the processes of one user on a host by Unix sockets.
//
// PrepareDir and CheckDir keep other users out of a socket's directory. Listen serves, and Dial
// connects, only processes of this user, by the credentials that the kernel keeps for each connection.
// ParseFiles returns the files that came with a message.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// MaxPath is the maximum length of a socket's path in bytes on all systems.
const MaxPath = 103

// PrepareDir creates a directory that only this user may enter. It fails if the directory exists and
// CheckDir does.
func PrepareDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return CheckDir(dir)
}

// CheckDir returns an error unless a directory belongs to this user and no other user may enter
// it: then no other user can have put a socket there.
func CheckDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s must be a directory of this user with mode 0700; it has mode %04o and belongs to user %d: use chmod or chown", dir, st.Mode&0o7777, st.Uid)
	}
	return nil
}

// PeerUser returns the user of the process at the other end of a connection, or -1 and an error.
func PeerUser(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid := -1 // 0 is root
	failed := raw.Control(func(fd uintptr) { uid, err = userOf(int(fd)) })
	return uid, errors.Join(failed, err)
}

// CheckPeer returns an error unless the process at the other end of a connection runs as the user
// of this one.
func CheckPeer(c *net.UnixConn) error {
	uid, err := PeerUser(c)
	if err == nil && uid != os.Geteuid() {
		err = fmt.Errorf("the peer runs as user %d, this process as user %d", uid, os.Geteuid())
	}
	return err
}

// dialTimeout bounds Dial.
const dialTimeout = 5 * time.Second

// Dial connects to a socket of this user. It fails unless directory and server belong to this user:
// another user's engine, for example, could name blocks, and map memory, as it likes.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := CheckDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn)
	if err := CheckPeer(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("the server at %s: %w", path, err)
	}
	return conn, nil
}

// ParseFiles returns the descriptors of a control message, as files of a name. The caller closes
// them, also after an error.
func ParseFiles(rights []byte, name string) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), name))
		}
	}
	return files, nil
}
