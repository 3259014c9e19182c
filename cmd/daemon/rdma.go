package daemon

import (
	"net/http"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
)

// newRDMA builds the transport over RDMA. Its connections are made over the peers'
// port, whose credentials it has: without any it stays on the own node.
func (d *Daemon) newRDMA() error {
	vc := verbs.Config{
		Library: d.cfg.RDMA, Address: func() string { return d.cfg.Replica.Peer }, Pool: d.blocks, Logger: d.cfg.Logger,
	}
	if d.cfg.TLS != nil {
		vc.Credentials, vc.TrustDomain = d.credentials, d.cfg.Fleet.Fleet.TLS.TrustDomain
	}
	t, err := verbs.New(vc)
	if err != nil {
		return err
	}
	d.rdma, d.transports = t, append(d.transports, t)
	return nil
}

// peerRPC serves the gRPC of the peers' port.
func (d *Daemon) peerRPC() http.Handler {
	peers := d.network.Handler()
	if d.rdma == nil {
		return peers
	}
	rdma := d.rdma.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, verbs.Path) {
			rdma.ServeHTTP(w, r)
			return
		}
		peers.ServeHTTP(w, r)
	})
}
