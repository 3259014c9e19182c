package daemon

import (
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// ControlUsage is the usage of a daemon's flag --control.
const ControlUsage = "host:port of the control plane, or a comma-separated list; default: control.socket, or control.listen and control.peers, of the file"

// ControlPlanes are host:port of the control planes of a daemon, at least one, in the order in which it tries them.
type ControlPlanes struct {
	daemon    *Daemon
	addresses []string
}

// ControlPlanes returns those of the flag --control or, if that is empty, of the fleet file.
func (d *Daemon) ControlPlanes(flag string) (ControlPlanes, error) {
	c := ControlPlanes{d, d.fleet.OwnControlPlanes()}
	if flag == "" {
		return c, nil
	}
	c.addresses = strings.Split(flag, ",")
	for i, p := range c.addresses {
		c.addresses[i] = strings.TrimSpace(p)
		if _, _, err := net.SplitHostPort(c.addresses[i]); err != nil {
			return c, fmt.Errorf("--control: %q: must be host:port", c.addresses[i])
		}
	}
	return c, nil
}

// String lists the control planes for people.
func (c ControlPlanes) String() string { return strings.Join(c.addresses, " and ") }

// Dial returns gRPC connections, and a function that closes them.
func (c ControlPlanes) Dial() (conns []grpc.ClientConnInterface, close func(), err error) {
	var open []*grpc.ClientConn
	close = func() {
		for _, c := range open {
			c.Close()
		}
	}
	for _, address := range c.addresses {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c.daemon.Certs.ControlCredentials(address)), loadreport.ConnectParams())
		if err != nil {
			close()
			return nil, nil, fmt.Errorf("control plane %s: %w", address, err)
		}
		open, conns = append(open, conn), append(conns, conn)
	}
	return conns, close, nil
}

// Client returns the configuration of an xDS client of the control planes.
func (c ControlPlanes) Client(nodeID string) routing.Config {
	first := c.addresses[0]
	out := routing.Config{Target: first, Credentials: c.daemon.Certs.ControlCredentials(first), NodeID: nodeID}
	for _, address := range c.addresses[1:] {
		out.OtherServers = append(out.OtherServers, routing.Server{Target: address, Credentials: c.daemon.Certs.ControlCredentials(address)})
	}
	return out
}
