package migratord

import (
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	xds "github.com/cascadeinfer/cascade/xds/api"
	topologywire "github.com/cascadeinfer/cascade/xds/loadreport"
)

// linkCache holds the locations of the replica's and its peers' KV caches, and the links between
// them.
type linkCache struct {
	tokenBytes float64 // of the replica; constant

	mu           sync.Mutex
	machine      *topology.Machine // the description from which own was built
	gpuUnknown   bool              // whether own was built with the pool on a GPU that no report named
	own          links.Topology
	wire         *xds.Topology // own, as sent to others; replaced when its content changes
	peers        map[policies.ReplicaID]*peerLinks
	fileReplicas map[policies.ReplicaID]config.Replica // as in the fleet file
	// toPeers are the best links to all peers as of toPeersAt. They are cached because a market
	// reads them for each candidate of each offer.
	toPeers   map[policies.ReplicaID]links.Path
	toPeersAt time.Time
}

// toPeersMaxAge is the age at which toPeers is refreshed.
const toPeersMaxAge = time.Second

// peerLinks are the links to and from one peer.
type peerLinks struct {
	reported *xds.Topology // by the peer; nil: no report
	host     string
	own      *xds.Topology // the own topology from which the links were computed
	to       links.Path    // the path to the peer, by the fleet file's rates
	from     []links.Path
}

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

// peerLinksLocked returns the links to and from a peer.
func (d *Daemon) peerLinksLocked(id policies.ReplicaID) *peerLinks {
	n := &d.linkCache
	d.updateTopologyLocked()
	reported, host := d.network.Topology(id), d.controlView.host(id)
	if host == "" {
		r, _ := d.replicaLocked(id)
		host = r.Host
	}
	p := n.peers[id]
	if p != nil && p.reported == reported && p.host == host && p.own == n.wire {
		return p
	}
	p = &peerLinks{reported: reported, host: host, own: n.wire}
	there := d.peerTopologyLocked(id, reported, host)
	p.to = d.cfg.Fleet.Links().BestPath(n.own, there)
	if n.own.Known && there.Known {
		p.from = links.Paths(there, n.own)
	}
	if n.peers == nil || len(n.peers) >= maxPeerLinks {
		n.peers = make(map[policies.ReplicaID]*peerLinks)
	}
	n.peers[id] = p
	return p
}

// maxPeerLinks bounds the cache; when it is full, it is cleared.
const maxPeerLinks = 1 << 15

// peerTopologyLocked returns the location of a peer: the one it reported; else, on a host with a
// known description, the one of the fleet file; else only its host.
func (d *Daemon) peerTopologyLocked(id policies.ReplicaID, reported *xds.Topology, host string) links.Topology {
	if reported != nil {
		if s, err := topologywire.DecodeTopology(reported); err == nil {
			s.Host = host
			return s
		}
	}
	m := d.cfg.Fleet.Machines[host]
	if m == nil && host == d.cfg.Replica.Host {
		m = d.linkCache.machine
	}
	r, known := d.replicaLocked(id)
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
		next := make(map[policies.ReplicaID]links.Path) // the previous map may be in use
		for _, id := range d.controlView.peerIDs() {
			next[id] = d.peerLinksLocked(id).to
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
	if d.updateTopologyLocked(); inHost && d.linkCache.own.GPU != nil {
		return nil
	}
	return d.peerLinksLocked(from).from
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
