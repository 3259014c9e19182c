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

// nearby is what a daemon knows of where the KV caches of its replica and of the
// others are.
type nearby struct {
	tokenBytes float64 // of the replica; fixed

	mu      sync.Mutex
	machine *topology.Machine // that own was made of
	strayed bool              // and whether the pool was on a GPU that nobody named
	own     links.Site
	wire    *xds.Site // own, for others; another one when it says something else
	peers   map[policies.ReplicaID]*neighbour
	file    map[policies.ReplicaID]config.Replica // as the fleet file has them
	// away are the ways to all peers as of drawn: a market asks for each of them, offer
	// by offer.
	away  map[policies.ReplicaID]links.Way
	drawn time.Time
}

// drawEvery is how old away may be.
const drawEvery = time.Second

// neighbour is another replica, as it was last seen.
type neighbour struct {
	told *xds.Site // that site was made of; nil: nothing was told
	node string
	own  *xds.Site // that the rest was worked out for
	to   links.Way // the way there, by the fleet file's rates
	from []links.Way
}

// replicaLocked is what the fleet file says of a replica, if it knows it.
func (d *Daemon) replicaLocked(id policies.ReplicaID) (config.Replica, bool) {
	n := &d.nearby
	if n.file == nil {
		n.file = make(map[policies.ReplicaID]config.Replica, len(d.cfg.Fleet.Fleet.Replicas))
		for _, r := range d.cfg.Fleet.Fleet.Replicas {
			n.file[policies.ReplicaID(r.ID)] = r
		}
	}
	r, ok := n.file[id]
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

// strays says that the engine's pool is on a GPU and that nobody knows which one.
func (d *Daemon) strays() bool {
	if d.cfg.Replica.GPU != nil {
		return false
	}
	m, ok := d.memory()
	return ok && m.Device != nil
}

// siteLocked brings what is known of the own replica up to date.
func (d *Daemon) siteLocked() {
	n, m, strays := &d.nearby, d.machine(), d.strays()
	if n.wire != nil && m == n.machine && strays == n.strayed {
		return
	}
	n.machine, n.strayed = m, strays
	s := links.Site{}
	if m != nil && !strays {
		s = m.Site(d.cfg.Fleet.Place(d.cfg.Replica))
	}
	s.Node = d.cfg.Replica.Node
	if n.wire == nil || !s.Equal(n.own) {
		n.own, n.wire = s, topologywire.Encode(s)
	}
}

// site is where the own KV cache is, on the wire: the same pointer while it says the
// same.
func (d *Daemon) site() *xds.Site {
	n := &d.nearby
	n.mu.Lock()
	defer n.mu.Unlock()
	d.siteLocked()
	return n.wire
}

// neighbourLocked is what is known of a peer, and of the ways between.
func (d *Daemon) neighbourLocked(id policies.ReplicaID) *neighbour {
	n := &d.nearby
	d.siteLocked()
	told, node := d.network.Site(id), d.outlook.node(id)
	if node == "" {
		r, _ := d.replicaLocked(id)
		node = r.Node
	}
	p := n.peers[id]
	if p != nil && p.told == told && p.node == node && p.own == n.wire {
		return p
	}
	p = &neighbour{told: told, node: node, own: n.wire}
	there := d.seenLocked(id, told, node)
	p.to = d.cfg.Fleet.Links().Best(n.own, there)
	if n.own.Known && there.Known {
		p.from = links.Ways(there, n.own)
	}
	if n.peers == nil || len(n.peers) >= mostNeighbours {
		n.peers = make(map[policies.ReplicaID]*neighbour)
	}
	n.peers[id] = p
	return p
}

// mostNeighbours bounds what is remembered of peers; more begin anew.
const mostNeighbours = 1 << 15

// seenLocked is where a peer is: as it told, else, on a machine that is known here too, as
// the fleet file says, else on its node.
func (d *Daemon) seenLocked(id policies.ReplicaID, told *xds.Site, node string) links.Site {
	if told != nil {
		if s, err := topologywire.Decode(told); err == nil {
			s.Node = node
			return s
		}
	}
	m := d.cfg.Fleet.Machines[node]
	if m == nil && node == d.cfg.Replica.Node {
		m = d.nearby.machine
	}
	r, known := d.replicaLocked(id)
	if m == nil || !known || d.nearby.strayed {
		return links.Site{Node: node}
	}
	s := m.Site(d.cfg.Fleet.Place(r))
	s.Node = node
	return s
}

// distance is what a transfer of so many tokens to a peer takes by the links between.
func (d *Daemon) distance(to policies.ReplicaID, length policies.Tokens) policies.Micros {
	w, ok := d.away()[to]
	if !ok {
		w.Rate = d.cfg.Fleet.Links().Between
	}
	return w.Latency + policies.Micros(float64(length)*d.nearby.tokenBytes/float64(max(1, w.Rate))*1e6)
}

// away are the ways to all peers, as they were a moment ago.
func (d *Daemon) away() map[policies.ReplicaID]links.Way {
	n := &d.nearby
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away == nil || time.Since(n.drawn) >= drawEvery {
		next := make(map[policies.ReplicaID]links.Way) // the last one may be in use
		for _, id := range d.outlook.known() {
			next[id] = d.neighbourLocked(id).to
		}
		n.away, n.drawn = next, time.Now()
	}
	return n.away
}

// ways are those by which blocks may come from a peer; nil where nothing is known of
// one of the two, or the own engine has its KV elsewhere than the fleet file says: an
// emulated one may stand on a GPU, and have its pool in the machine's memory.
func (d *Daemon) ways(from policies.ReplicaID) []links.Way {
	m, ok := d.memory()
	inHost := ok && m.Device == nil
	d.nearby.mu.Lock()
	defer d.nearby.mu.Unlock()
	if d.siteLocked(); inHost && d.nearby.own.GPU != nil {
		return nil
	}
	return d.neighbourLocked(from).from
}

// over is what a transport goes over between a peer and this replica, "" where
// nothing is known.
func (d *Daemon) over(from policies.ReplicaID, transport string) string {
	ways := d.ways(from)
	for _, closed := range [...]bool{false, true} {
		for _, w := range ways {
			if w.Transport == transport && w.Closed == closed {
				return w.Why
			}
		}
	}
	return ""
}
