package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/xds/client"
)

// controlConns describes how a daemon connects to its control planes.
type controlConns struct {
	log   *slog.Logger
	creds credentials
	// control lists host:port of the control planes, at least one, in the order in which the daemon
	// tries them.
	control []string
}

// controlUsage is the usage of a daemon's --control.
const controlUsage = "host:port of the control plane, or a comma-separated list; default: control.listen and control.peers of the file"

// newControlConns returns the connections of a daemon; control overrides the control planes of the
// file unless it is empty. The caller closes creds.
func (s *settings) newControlConns(fleet wiring.Fleet, who component, control string) (controlConns, error) {
	log, err := s.logger()
	if err != nil {
		return controlConns{}, err
	}
	id, err := loadCredentials(fleet.TLS(who.role, who.name), who, log)
	planes := fleet.ControlPlanes()
	if control != "" {
		planes = strings.Split(control, ",")
		for i, p := range planes {
			planes[i] = strings.TrimSpace(p)
			if _, _, bad := net.SplitHostPort(planes[i]); bad != nil {
				return controlConns{log: log, creds: id}, errors.Join(err, fmt.Errorf("--control: %q: must be host:port", planes[i]))
			}
		}
	}
	return controlConns{log: log, creds: id, control: planes}, err
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
		c, err := grpc.NewClient(address, grpc.WithTransportCredentials(certs.TransportCredentials(m.creds.ControlClientConfig(address))), loadreport.ConnectParams())
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
		others = append(others, client.Server{Target: address, TLS: m.creds.ControlClientConfig(address)})
	}
	return others
}
