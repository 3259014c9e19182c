package wiring

import (
	"context"
	"log/slog"
	"net"
	"runtime"

	"github.com/cascadeinfer/cascade/cmd/internal/localuser"
)

// PeerSocket is where a migrator listens for the others, given the address in the fleet file: that address, or, in a
// fleet with control.socket, the abstract Unix socket of its name. All migrators of such a fleet are on one host, without
// TLS, and the kernel says who connects to a Unix socket. Only Linux has abstract ones, which end with their process.
func (f *Fleet) PeerSocket(address string) string {
	if f.Fleet.Control.Socket == "" || runtime.GOOS != "linux" {
		return address
	}
	return "@cascade-peer/" + address
}

// Peers connects the migrators of a fleet whose PeerSocket is a Unix socket: root, this process's user and
// control.socket_users, in both directions.
type Peers struct {
	fleet *Fleet
	users *localuser.Policy
}

// Peers returns nil for a fleet whose migrators listen by TCP.
func (f *Fleet) Peers() (*Peers, error) {
	if f.PeerSocket("") == "" {
		return nil, nil
	}
	users, err := f.ownUsers()
	return &Peers{f, users}, err
}

// Admit returns a listener of the connections of l, a PeerSocket, that come from migrators.
func (p *Peers) Admit(l net.Listener, log *slog.Logger) net.Listener {
	return p.users.Filter(l, func(err error) {
		log.Warn("peer refused; add its user to control.socket_users if it is a migrator of the fleet", "error", err)
	})
}

// Dial connects to the migrator with an address.
func (p *Peers) Dial(ctx context.Context, address string) (net.Conn, error) {
	return p.users.Dial(ctx, p.fleet.PeerSocket(address))
}
