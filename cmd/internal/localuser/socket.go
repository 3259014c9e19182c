package localuser

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

// Listen opens a Unix socket that admits the users of p, by the peer's credentials that the kernel keeps for each
// connection. It closes the connections of other users, and calls refused with the reason; refused must not block. The
// socket of a process that has ended is replaced. Only the own user should be able to write the folder.
func (p *Policy) Listen(path string, refused func(error)) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		conn, dialErr := net.Dial("unix", path)
		if dialErr == nil {
			conn.Close()
		} else if errors.Is(dialErr, syscall.ECONNREFUSED) {
			if err = os.Remove(path); err == nil {
				l, err = net.Listen("unix", path)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil { // Accept checks the users
		l.Close()
		return nil, err
	}
	return &listener{Listener: l, policy: p, refused: refused}, nil
}

type listener struct {
	net.Listener
	policy  *Policy
	refused func(error)
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := unixsocket.PeerUser(conn.(*net.UnixConn))
		if err == nil && !l.policy.any && !slices.Contains(l.policy.uids, uid) {
			err = fmt.Errorf("user %d is not admitted", uid)
		}
		if err == nil {
			return conn, nil
		}
		conn.Close()
		l.refused(err)
	}
}
