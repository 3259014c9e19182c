package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/client"
)

// controlConns describes how a daemon connects to its control planes.
type controlConns struct {
	log *slog.Logger
	// certs are the daemon's certificates, reloaded when their files rotate; nil, for plain text, if
	// the fleet file has no TLS. close stops to watch the files.
	certs *certs.Provider
	close func()
	// control lists host:port of the control planes, at least one, in the order in which the daemon
	// tries them.
	control []string
}

// controlUsage is the usage of a daemon's --control.
const controlUsage = "host:port of the control plane, or a comma-separated list; default: control.listen and control.peers of the file"

// component identifies a daemon in the fleet file's tls section. An empty name accepts the name in
// the certificate.
type component struct {
	role identity.Role
	name string
}

// newControlConns returns the connections of a daemon; control overrides the control planes of the
// file unless it is empty. The caller closes them.
func (s *settings) newControlConns(fleet wiring.Fleet, who component, control string) (m controlConns, err error) {
	if m.log, err = s.logger(); err != nil {
		return m, err
	}
	m.control = fleet.ControlPlanes()
	if control != "" {
		m.control = strings.Split(control, ",")
		for i, p := range m.control {
			m.control[i] = strings.TrimSpace(p)
			if _, _, err := net.SplitHostPort(m.control[i]); err != nil {
				return m, fmt.Errorf("--control: %q: must be host:port", m.control[i])
			}
		}
	}
	m.close = func() {}
	files := fleet.TLS(who.role, who.name)
	if files.Cert == "" {
		return m, nil
	}
	m.certs, err = certs.New(certs.Config{Cert: files.Cert, Key: files.Key, CA: files.CA, Self: files.ExpectedIdentity(who.role, who.name), Logger: m.log})
	if err != nil {
		return m, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { _ = m.certs.Run(ctx) }) // Run returns no errors
	m.close = func() { cancel(); watch.Wait() }
	return m, nil
}

// dial returns gRPC connections to the control planes, and a function that
// closes them.
func (m controlConns) dial() (conns []grpc.ClientConnInterface, close func(), err error) {
	var open []*grpc.ClientConn
	close = func() {
		for _, c := range open {
			c.Close()
		}
	}
	for _, address := range m.control {
		c, err := grpc.NewClient(address, grpc.WithTransportCredentials(m.certs.ControlCredentials(address)), loadreport.ConnectParams())
		if err != nil {
			close()
			return nil, nil, fmt.Errorf("control plane %s: %w", address, err)
		}
		open, conns = append(open, c), append(conns, c)
	}
	return conns, close, nil
}

// servers returns all control planes but the first, for an xDS client.
func (m controlConns) servers() (others []client.Server) {
	for _, address := range m.control[1:] {
		others = append(others, client.Server{Target: address, Credentials: m.certs.ControlCredentials(address)})
	}
	return others
}
