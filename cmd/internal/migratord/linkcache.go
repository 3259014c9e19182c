package migratord

import (
	"cmp"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	xds "github.com/cascadeinfer/cascade/xds/api"
	topologywire "github.com/cascadeinfer/cascade/xds/loadreport"
)

// linkCache holds the location of the replica's KV cache, and the links to its peers.
type linkCache struct {
	tokenBytes float64 // of the replica; constant

	mu           sync.Mutex
	machine      *topology.Machine // the description from which own was built
	gpuUnknown   bool              // whether own was built with the pool on a GPU that no report named
	own          links.Topology
	wire         *xds.Topology                         // own, as sent to others; replaced when its content changes
	fileReplicas map[policies.ReplicaID]config.Replica // as in the fleet file
	// toPeers are the best links to all peers as of toPeersAt. They are cached because a market
	// reads them for each candidate of each offer.
	toPeers   map[policies.ReplicaID]links.Path
	toPeersAt time.Time
}

// toPeersMaxAge is the age at which toPeers is refreshed.
const toPeersMaxAge = time.Second

// replicaLocked returns the fleet file's entry of a replica, if there is one.
func (d *Daemon) replicaLocked(id policies.ReplicaID) (config.Replica, bool) {
	n := &d.linkCache
	if n.fileReplicas == nil {
		n.fileReplicas = make(map[policies.ReplicaID]config.Replica, len(d.cfg.Fleet.Fleet.Replicas))
		for _, r := range d.cfg.Fleet.Fleet.Replicas {
			n.fileReplicas[policies.ReplicaID(r.ID)] = r
		}
	}
	r, ok := n.fileReplicas[id]
	return r, ok
}

// machine returns the description of this replica's host: from the fleet file if it has one, else
// from the inspection.
func (d *Daemon) machine() *topology.Machine {
	if m := d.cfg.Fleet.Machines[d.cfg.Replica.Host]; m != nil || d.cfg.Machine == nil {
		return m
	}
	return d.cfg.Machine()
}

// gpuUnknown reports whether the engine's pool is on a GPU whose index is not
// configured.
func (d *Daemon) gpuUnknown() bool {
	if d.cfg.Replica.GPU != nil {
		return false
	}
	m, ok := d.memory()
	return ok && m.Device != nil
}

// updateTopologyLocked updates the topology of this replica.
func (d *Daemon) updateTopologyLocked() {
	n, m, strays := &d.linkCache, d.machine(), d.gpuUnknown()
	if n.wire != nil && m == n.machine && strays == n.gpuUnknown {
		return
	}
	n.machine, n.gpuUnknown = m, strays
	s := links.Topology{}
	if m != nil && !strays {
		s = m.Topology(d.cfg.Fleet.Place(d.cfg.Replica))
	}
	s.Host = d.cfg.Replica.Host
	if n.wire == nil || !s.Equal(n.own) {
		n.own, n.wire = s, topologywire.EncodeTopology(s)
	}
}

// topology returns the location of this replica's KV cache, for the wire. The pointer is the same
// as long as the content is.
func (d *Daemon) topology() *xds.Topology {
	n := &d.linkCache
	n.mu.Lock()
	defer n.mu.Unlock()
	d.updateTopologyLocked()
	return n.wire
}

// peerTopologyLocked returns the location of a peer: the one it reported; else, on a host with a
// known description, the one of the fleet file; else only its host.
func (d *Daemon) peerTopologyLocked(id policies.ReplicaID) links.Topology {
	r, known := d.replicaLocked(id)
	host := cmp.Or(d.controlView.host(id), r.Host)
	if reported := d.network.Topology(id); reported != nil {
		if s, err := topologywire.DecodeTopology(reported); err == nil {
			s.Host = host
			return s
		}
	}
	m := d.cfg.Fleet.Machines[host]
	if m == nil && host == d.cfg.Replica.Host {
		m = d.linkCache.machine
	}
	if m == nil || !known || d.linkCache.gpuUnknown {
		return links.Topology{Host: host}
	}
	s := m.Topology(d.cfg.Fleet.Place(r))
	s.Host = host
	return s
}

// distances returns the time that a transfer of length tokens to a peer takes over the present links between the two
// replicas. What it returns takes no locks.
func (d *Daemon) distances() func(to policies.ReplicaID, length policies.Tokens) policies.Micros {
	known, tokenBytes := d.linksToPeers(), d.linkCache.tokenBytes
	return func(to policies.ReplicaID, length policies.Tokens) policies.Micros {
		w, ok := known[to]
		if !ok {
			w.Rate = d.cfg.Fleet.Links().BetweenHosts
		}
		return w.Latency + policies.Micros(float64(length)*tokenBytes/float64(max(1, w.Rate))*1e6)
	}
}

// linksToPeers returns the best links to all peers, at most toPeersMaxAge old.
func (d *Daemon) linksToPeers() map[policies.ReplicaID]links.Path {
	n := &d.linkCache
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.toPeers == nil || time.Since(n.toPeersAt) >= toPeersMaxAge {
		d.updateTopologyLocked()
		next := make(map[policies.ReplicaID]links.Path) // the previous map may be in use
		for _, id := range d.controlView.peerIDs() {
			next[id] = d.cfg.Fleet.Links().BestPath(n.own, d.peerTopologyLocked(id))
		}
		n.toPeers, n.toPeersAt = next, time.Now()
	}
	return n.toPeers
}

// linksFrom returns the links by which blocks may come from a peer. It returns nil if the topology
// of one of the two is unknown, or if the engine keeps its KV elsewhere than the fleet file says:
// an emulated engine may have a GPU and yet keep its pool in host memory.
func (d *Daemon) linksFrom(from policies.ReplicaID) []links.Path {
	m, ok := d.memory()
	inHost := ok && m.Device == nil
	d.linkCache.mu.Lock()
	defer d.linkCache.mu.Unlock()
	d.updateTopologyLocked()
	own, there := d.linkCache.own, d.peerTopologyLocked(from)
	if inHost && own.GPU != nil || !own.Known || !there.Known {
		return nil
	}
	return links.Paths(there, own)
}

// describeLink returns the link that a transport uses between a peer and this replica, or "" if it
// is unknown.
func (d *Daemon) describeLink(from policies.ReplicaID, transport string) string {
	paths := d.linksFrom(from)
	for _, closed := range [...]bool{false, true} {
		for _, w := range paths {
			if w.Transport == transport && w.Closed == closed {
				return w.Reason
			}
		}
	}
	return ""
}
