package localuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
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
	return p.Filter(l, refused), nil
}

// Network is the network of an address: unix of @NAME, an abstract Unix socket, and tcp of host:port.
func Network(address string) string {
	if strings.HasPrefix(address, "@") {
		return "unix"
	}
	return "tcp"
}

// Filter returns a listener of those connections of l, a Unix socket, whose users p admits. It closes the others, and
// calls refused with the reason; refused must not block.
func (p *Policy) Filter(l net.Listener, refused func(error)) net.Listener {
	return &listener{Listener: l, policy: p, refused: refused}
}

// Dial connects to a Unix socket. It fails unless p admits the user of the server.
func (p *Policy) Dial(ctx context.Context, name string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", name)
	if err != nil {
		return nil, err
	}
	if err := p.admitPeer(conn.(*net.UnixConn)); err != nil {
		conn.Close()
		return nil, fmt.Errorf("the server at %s: %w", name, err)
	}
	return conn, nil
}

// admitPeer returns why the process at the other end of a connection is not admitted, nil if it is.
func (p *Policy) admitPeer(conn *net.UnixConn) error {
	uid, err := unixsocket.PeerUser(conn)
	if err == nil && !p.any && !slices.Contains(p.uids, uid) {
		err = fmt.Errorf("user %d is not admitted", uid)
	}
	return err
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
		if err = l.policy.admitPeer(conn.(*net.UnixConn)); err == nil {
			return conn, nil
		}
		conn.Close()
		l.refused(err)
	}
}
