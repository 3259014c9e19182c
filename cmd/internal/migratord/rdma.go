package migratord

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
	"github.com/cascadeinfer/cascade/policies/links"
)

// newRDMA builds the RDMA transport. It sets up connections over the peers' port with the
// credentials of that port; without TLS it stays within the host.
func (d *Daemon) newRDMA(pool transport.Pool) error {
	own, all := d.cfg.Replica.RDMA, d.cfg.Fleet.RDMA
	_, port := own.Device()
	vc := verbs.Config{
		Device: d.rdmaDevice, Bounce: d.bounceThroughHost, Port: port, TrafficClass: uint8(all.TrafficClass), ServiceLevel: uint8(all.ServiceLevel),
		Library: d.cfg.RDMA, Address: func() string { return d.cfg.Replica.Peer }, Pool: pool, Logger: d.cfg.Logger,
	}
	if d.cfg.TLS != nil {
		vc.Credentials, vc.TrustDomain = d.credentials, d.cfg.Fleet.Fleet.TLS.TrustDomain
	}
	if address := own.Address(); address != "" {
		var err error
		if vc.GID, err = netip.ParseAddr(address); err != nil {
			return err
		}
	}
	t, err := verbs.New(vc)
	if err != nil {
		return err
	}
	d.rdma, d.transports = t, append(d.transports, t)
	return nil
}

// rdmaDevice returns the device named in the fleet file, or the one nearest to the replica's KV
// cache on this host, or "" while that is unknown.
func (d *Daemon) rdmaDevice() string {
	if name, _ := d.cfg.Replica.RDMA.Device(); name != "" || d.cfg.Machine == nil {
		return name
	}
	if m := d.cfg.Machine(); m != nil {
		if p := m.Topology(d.cfg.Fleet.Place(d.cfg.Replica)).RDMA; p != nil {
			return p.Name
		}
	}
	return ""
}

// bounceThroughHost reports whether GPU KV is copied to host memory on its way to the NIC because
// the GPU and the NIC belong to different processors, according to the topology that this replica
// reports (links.Paths).
func (d *Daemon) bounceThroughHost() bool {
	d.linkCache.mu.Lock()
	defer d.linkCache.mu.Unlock()
	d.updateTopologyLocked()
	p := d.linkCache.own.RDMA
	return p != nil && p.Distance == links.System
}

// peerRPC returns the handler of gRPC requests on the peers' port.
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
