//go:build unix

package localsocket

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

// CheckDir returns an error unless a directory belongs to this user and no other user may enter
// it: then no other user can have put a socket there.
func CheckDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s must be a directory of this user with mode 0700; it has mode %04o and belongs to user %d", dir, st.Mode&0o7777, st.Uid)
	}
	return nil
}

// CheckPeer returns an error unless the process at the other end of a connection runs as the user
// of this one.
func CheckPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	uid := -1 // 0 is root
	var credErr error
	if err := errors.Join(raw.Control(func(fd uintptr) { uid, credErr = userOf(int(fd)) }), credErr); err != nil {
		return err
	}
	if uid != os.Geteuid() {
		return fmt.Errorf("the peer runs as user %d, this process as user %d", uid, os.Geteuid())
	}
	return nil
}

// dialTimeout bounds Dial.
const dialTimeout = 5 * time.Second

// Dial connects to a socket of this user's engine. It fails unless directory and engine belong to
// this user: another user's engine could name blocks, and map memory, as it likes.
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
		return nil, fmt.Errorf("the engine at %s: %w", path, err)
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
