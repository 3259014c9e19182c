package migratord

import (
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	xds "github.com/cascadeinfer/cascade/xds/api"
	topologywire "github.com/cascadeinfer/cascade/xds/topology"
)

// linkCache is what a daemon knows of where the KV caches of its replica and of the
// others are.
type linkCache struct {
	tokenBytes float64 // of the replica; fixed

	mu           sync.Mutex
	machine      *topology.Machine // that own was made of
	gpuUnknown   bool              // and whether the pool was on a GPU that nobody named
	own          links.Topology
	wire         *xds.Site // own, for others; another one when it says something else
	peers        map[policies.ReplicaID]*peerLinks
	fileReplicas map[policies.ReplicaID]config.Replica // as the fleet file has them
	// toPeers are the ways to all peers as of drawn: a market asks for each of them, offer
	// by offer.
	toPeers   map[policies.ReplicaID]links.Path
	toPeersAt time.Time
}

// toPeersMaxAge is how old away may be.
const toPeersMaxAge = time.Second

// peerLinks is another replica, as it was last seen.
type peerLinks struct {
	reported *xds.Site // that site was made of; nil: nothing was told
	node     string
	own      *xds.Site  // that the rest was worked out for
	to       links.Path // the way there, by the fleet file's rates
	from     []links.Path
}

// replicaLocked is what the fleet file says of a replica, if it knows it.
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

// machine is what is known of the own node: what the fleet file says, else what is
// there.
func (d *Daemon) machine() *topology.Machine {
	if m := d.cfg.Fleet.Machines[d.cfg.Replica.Node]; m != nil || d.cfg.Machine == nil {
		return m
	}
	return d.cfg.Machine()
}

// gpuUnknown says that the engine's pool is on a GPU and that nobody knows which one.
func (d *Daemon) gpuUnknown() bool {
	if d.cfg.Replica.GPU != nil {
		return false
	}
	m, ok := d.memory()
	return ok && m.Device != nil
}

// updateSiteLocked brings what is known of the own replica up to date.
func (d *Daemon) updateSiteLocked() {
	n, m, strays := &d.linkCache, d.machine(), d.gpuUnknown()
	if n.wire != nil && m == n.machine && strays == n.gpuUnknown {
		return
	}
	n.machine, n.gpuUnknown = m, strays
	s := links.Topology{}
	if m != nil && !strays {
		s = m.Site(d.cfg.Fleet.Place(d.cfg.Replica))
	}
	s.Host = d.cfg.Replica.Node
	if n.wire == nil || !s.Equal(n.own) {
		n.own, n.wire = s, topologywire.Encode(s)
	}
}

// site is where the own KV cache is, on the wire: the same pointer while it says the
// same.
func (d *Daemon) site() *xds.Site {
	n := &d.linkCache
	n.mu.Lock()
	defer n.mu.Unlock()
	d.updateSiteLocked()
	return n.wire
}

// peerLinksLocked is what is known of a peer, and of the ways between.
func (d *Daemon) peerLinksLocked(id policies.ReplicaID) *peerLinks {
	n := &d.linkCache
	d.updateSiteLocked()
	told, node := d.network.Site(id), d.controlView.node(id)
	if node == "" {
		r, _ := d.replicaLocked(id)
		node = r.Node
	}
	p := n.peers[id]
	if p != nil && p.reported == told && p.node == node && p.own == n.wire {
		return p
	}
	p = &peerLinks{reported: told, node: node, own: n.wire}
	there := d.peerSiteLocked(id, told, node)
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

// maxPeerLinks bounds what is remembered of peers; more begin anew.
const maxPeerLinks = 1 << 15

// peerSiteLocked is where a peer is: as it told, else, on a machine that is known here too, as
// the fleet file says, else on its node.
func (d *Daemon) peerSiteLocked(id policies.ReplicaID, told *xds.Site, node string) links.Topology {
	if told != nil {
		if s, err := topologywire.Decode(told); err == nil {
			s.Host = node
			return s
		}
	}
	m := d.cfg.Fleet.Machines[node]
	if m == nil && node == d.cfg.Replica.Node {
		m = d.linkCache.machine
	}
	r, known := d.replicaLocked(id)
	if m == nil || !known || d.linkCache.gpuUnknown {
		return links.Topology{Host: node}
	}
	s := m.Site(d.cfg.Fleet.Place(r))
	s.Host = node
	return s
}

// distance is what a transfer of so many tokens to a peer takes by the links between.
func (d *Daemon) distance(to policies.ReplicaID, length policies.Tokens) policies.Micros {
	w, ok := d.linksToPeers()[to]
	if !ok {
		w.Rate = d.cfg.Fleet.Links().BetweenHosts
	}
	return w.Latency + policies.Micros(float64(length)*d.linkCache.tokenBytes/float64(max(1, w.Rate))*1e6)
}

// linksToPeers are the ways to all peers, as they were a moment ago.
func (d *Daemon) linksToPeers() map[policies.ReplicaID]links.Path {
	n := &d.linkCache
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.toPeers == nil || time.Since(n.toPeersAt) >= toPeersMaxAge {
		next := make(map[policies.ReplicaID]links.Path) // the last one may be in use
		for _, id := range d.controlView.peerIDs() {
			next[id] = d.peerLinksLocked(id).to
		}
		n.toPeers, n.toPeersAt = next, time.Now()
	}
	return n.toPeers
}

// linksFrom are those by which blocks may come from a peer; nil where nothing is known of
// one of the two, or the own engine has its KV elsewhere than the fleet file says: an
// emulated one may stand on a GPU, and have its pool in the machine's memory.
func (d *Daemon) linksFrom(from policies.ReplicaID) []links.Path {
	m, ok := d.memory()
	inHost := ok && m.Device == nil
	d.linkCache.mu.Lock()
	defer d.linkCache.mu.Unlock()
	if d.updateSiteLocked(); inHost && d.linkCache.own.GPU != nil {
		return nil
	}
	return d.peerLinksLocked(from).from
}

// describeLink is what a transport goes over between a peer and this replica, "" where
// nothing is known.
func (d *Daemon) describeLink(from policies.ReplicaID, transport string) string {
	ways := d.linksFrom(from)
	for _, closed := range [...]bool{false, true} {
		for _, w := range ways {
			if w.Transport == transport && w.Closed == closed {
				return w.Reason
			}
		}
	}
	return ""
}
