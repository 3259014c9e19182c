package migratord

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/migrator/peer"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// pairedGPUs returns a host with four GPUs, joined in pairs by NVLink.
func pairedGPUs(name string) *topology.Machine {
	m := &topology.Machine{Name: name, Libraries: []topology.Library{{Name: topology.CUDA}, {Name: topology.Verbs, Missing: "not here"}}}
	for i := range 4 {
		g := topology.GPU{Index: i, UUID: fmt.Sprint(name, i), PCI: topology.PCI{Address: fmt.Sprint("g", i), NUMA: i / 2, Link: topology.PCIe{MaxGen: 4, MaxWidth: 16}}}
		for range 4 {
			g.NVLinks = append(g.NVLinks, topology.NVLink{Active: true, Version: 3, Remote: fmt.Sprint("g", i^1)})
		}
		m.GPUs = append(m.GPUs, g)
	}
	return m
}

// newLinkDaemon returns the daemon of r0 on GPU 0 of host a. The fleet file has r1 and r2 on GPUs 1
// and 2, r3 in host memory, and r4 on another host.
func newLinkDaemon(t *testing.T) *Daemon {
	t.Helper()
	network, err := peer.New(peer.Config{Self: "r0", Handle: func(policies.ReplicaID, *api.Envelope) {}})
	testkit.NoError(t, err)
	var f wiring.Fleet
	f.Migration = config.Migration{LinkGbps: 200}
	for i := range 5 {
		r := config.Replica{ID: fmt.Sprint("r", i), Host: "a"}
		if i < 3 {
			r.GPU = &i
		}
		if i == 4 {
			r.Host = "b"
		}
		f.Fleet.Replicas = append(f.Fleet.Replicas, r)
	}
	d := &Daemon{cfg: Config{Fleet: f, Replica: f.Fleet.Replicas[0]}, network: network}
	d.linkCache.tokenBytes = 1e6
	d.controlView.peers = make(map[policies.ReplicaID]policies.Replica)
	for _, r := range f.Fleet.Replicas {
		d.controlView.peers[policies.ReplicaID(r.ID)] = policies.Replica{ID: policies.ReplicaID(r.ID), Host: r.Host}
	}
	return d
}

// TestDistances checks that the links of a known host take precedence over the rate of the fleet
// file, before any peer has reported.
func TestDistances(t *testing.T) {
	d := newLinkDaemon(t)
	for id, want := range map[policies.ReplicaID]policies.Micros{"r1": 40, "r3": 40, "r4": 40, "stranger": 40} {
		if got := d.distances()(id, 1); got != want {
			t.Errorf("without a machine %s is %d µs a token away, not %d", id, got, want)
		}
	}
	if w := d.linksFrom("r1"); w != nil {
		t.Errorf("paths of which nothing is known: %v", w)
	}
	m := pairedGPUs("a")
	d.cfg.Machine = func() *topology.Machine { return m }
	d.linkCache.toPeersAt = d.linkCache.toPeersAt.Add(-toPeersMaxAge)
	for id, want := range map[policies.ReplicaID]policies.Micros{"r1": 12 + 10, "r2": 389 + 100, "r3": 389 + 100, "r4": 40, "stranger": 40} {
		if got := d.distances()(id, 1); got != want {
			t.Errorf("%s is %d µs a token away, not %d", id, got, want)
		}
	}
	if w := links.BestPath(d.linksFrom("r1")); w.Kind != links.NVLinked || d.describeLink("r1", "cuda") != w.Reason || w.Reason == "" {
		t.Errorf("from r1: %+v", w)
	}
	if why := d.describeLink("r2", "cuda"); why == "" || why == d.describeLink("r1", "cuda") {
		t.Errorf("why not by cuda from r2: %q", why)
	}
	if d.linksFrom("r4") != nil {
		t.Error("the links to another host are known")
	}
}

// TestTopology checks that a topology is the same message until it changes.
func TestTopology(t *testing.T) {
	d := newLinkDaemon(t)
	blind := d.topology()
	if blind.GetHost() != "a" || blind.GetKnown() || d.topology() != blind {
		t.Errorf("without a machine: %v", blind)
	}
	m := pairedGPUs("another name")
	d.cfg.Machine = func() *topology.Machine { return m }
	seen := d.topology()
	if seen == blind || seen.GetHost() != "a" || !seen.GetKnown() || len(seen.GetGpu().GetPeers()) != 3 {
		t.Errorf("with a machine: %v", seen)
	}
	m = pairedGPUs("another name") // a later inspection
	if d.topology() != seen {
		t.Error("an unchanged topology is reported again")
	}
	m = pairedGPUs("another name")
	m.GPUs[0].Health.Lost = "it has fallen off the bus"
	if s := d.topology(); s == seen || s.GetGpu().GetLost() == "" {
		t.Errorf("a lost GPU: %v", s)
	}
	// The fleet file takes precedence.
	d.cfg.Fleet.Machines = topology.Machines{"a": &topology.Machine{Name: "a"}}
	if s := d.topology(); !s.GetKnown() || !s.GetGpu().GetAbsent() {
		t.Errorf("by the fleet file: %v", s)
	}
}

// TestTopologyRDMA checks that the replica reports and the transport opens the port that the fleet file
// names, and none if RDMA is not allowed. The same applies to peers that have not reported.
func TestTopologyRDMA(t *testing.T) {
	m := pairedGPUs("a")
	m.Libraries[1].Missing = ""
	m.NICs = []topology.NIC{{Name: "mlx5_0", Port: 1, RDMA: "InfiniBand", Up: true, Rate: 50e9}, {Name: "mlx5_1", Port: 1, RDMA: "InfiniBand", Up: true, Rate: 25e9}, {Name: "mlx5_1", Port: 2, RDMA: "InfiniBand", Up: true, Rate: 12e9}}
	for _, c := range []struct {
		tls                config.TLS
		own                config.RDMAPort
		port, device, none string
		rate               int64
	}{
		{port: "mlx5_0", device: "mlx5_0", rate: 50e9},
		{own: "mlx5_1", port: "mlx5_1", device: "mlx5_1", rate: 25e9},
		{own: "mlx5_1:2", port: "mlx5_1", device: "mlx5_1", rate: 12e9},
		{own: "mlx5_9", device: "mlx5_9", none: "mlx5_9, which does not exist"},
		{tls: config.TLS{Cert: "c"}, none: "does not list rdma"}, // RDMA encrypts nothing
		{tls: config.TLS{Cert: "c", Plaintext: []string{config.PlaintextRDMA}}, port: "mlx5_0", device: "mlx5_0", rate: 50e9},
		{tls: config.TLS{Cert: "c"}, own: "mlx5_1", device: "mlx5_1", none: "does not list rdma"},
	} {
		d := newLinkDaemon(t)
		d.cfg.Machine = func() *topology.Machine { return m }
		d.cfg.Fleet.Fleet.TLS = c.tls
		d.cfg.Replica.RDMA, d.cfg.Fleet.Fleet.Replicas[1].RDMA = c.own, c.own
		d.linkCache.mu.Lock()
		d.updateTopologyLocked()
		peer := d.peerTopologyLocked("r1", nil, "a")
		d.linkCache.mu.Unlock()
		if got := d.topology(); got.GetRdma().GetName() != c.port || got.GetRdma().GetRate() != c.rate || !strings.Contains(got.GetVerbs(), c.none) || (got.GetVerbs() == "") != (c.none == "") {
			t.Errorf("%+v: it reports %v", c, got)
		}
		if (peer.RDMA == nil) != (c.port == "") || peer.RDMA != nil && (peer.RDMA.Name != c.port || int64(peer.RDMA.Rate) != c.rate) || (peer.Verbs == "") != (c.none == "") {
			t.Errorf("%+v: of r1 it takes %+v", c, peer)
		}
		if got := d.rdmaDevice(); got != c.device {
			t.Errorf("%+v: the transport opens %q", c, got)
		}
	}
}

// TestBounce checks that blocks pass through host memory only if the nearest NIC belongs to another
// processor.
func TestBounce(t *testing.T) {
	d := newLinkDaemon(t)
	if d.bounceThroughHost() {
		t.Error("without a machine")
	}
	var m *topology.Machine
	d.cfg.Machine = func() *topology.Machine { return m }
	if d.bounceThroughHost() {
		t.Error("before a machine is known")
	}
	for node, want := range map[int]bool{0: false, 1: true} {
		m = pairedGPUs("a")
		m.Libraries[1].Missing = ""
		m.NICs = []topology.NIC{{Name: "mlx5_0", Port: 1, RDMA: "InfiniBand", Up: true, Rate: 50e9, PCI: topology.PCI{Address: "n0", NUMA: node}}}
		if d.bounceThroughHost() != want {
			t.Errorf("a NIC of NUMA node %d: %v", node, d.bounceThroughHost())
		}
	}
}

// TestDistancesTakeNoLocks checks that distances can be asked under the market's lock, while who holds the daemon's locks
// waits for that one.
func TestDistancesTakeNoLocks(t *testing.T) {
	d := newLinkDaemon(t)
	distance := d.distances()
	d.linkCache.toPeersAt = time.Time{} // they are old by now
	d.linkCache.mu.Lock()
	defer d.linkCache.mu.Unlock()
	d.controlView.mu.Lock()
	defer d.controlView.mu.Unlock()
	answered := make(chan policies.Micros, 1)
	go func() { answered <- distance("r1", 1) }()
	select {
	case got := <-answered:
		if got != 40 {
			t.Errorf("%d µs a token, want 40", got)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for a lock")
	}
}
