package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// nic is an open device with its registrations. It is closed after its last user.
type nic struct {
	device *verbs.Device
	config Config
	// port is the number of the port in use.
	port uint8 // of its port

	// failed is done when the device has failed, with the cause.
	failed context.Context
	fail   context.CancelCauseFunc

	users int // guarded by Transport.mu

	staged atomic.Int64 // bytes of all bounce buffers

	gidMu sync.Mutex
	gids  []verbs.GID // of the port, best first; nil if they must be read again; guarded by gidMu

	mu       sync.Mutex
	regions  []*region
	keepIdle bool // whether an unused region may be kept
	// unreachable is the engine's memory that the NIC cannot reach, as a probe found; nil
	// for none.
	unreachable *transport.Memory
}

// deviceName returns the configured name, "" for none.
func (c Config) deviceName() string {
	if c.Device == nil {
		return ""
	}
	return c.Device()
}

// openNIC opens the configured device, or the first with an active port.
func openNIC(c Config) (*nic, error) {
	names := []string{c.deviceName()}
	if names[0] == "" {
		var err error
		if names, err = c.Library.Devices(); err != nil {
			return nil, err
		}
	}
	errs := []error{errors.New("no RDMA device with an active port")}
	for _, name := range names {
		n, err := openNICNamed(c, name)
		if err == nil {
			return n, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func openNICNamed(c Config, name string) (*nic, error) {
	d, err := c.Library.OpenDevice(name)
	if err != nil {
		return nil, err
	}
	n := &nic{device: d, config: c}
	n.failed, n.fail = context.WithCancelCause(context.Background())
	first, last := 1, d.Limits.Ports
	if c.Port != 0 {
		first, last = c.Port, c.Port
	}
	err = fmt.Errorf("%s has no ports", name)
	for i := first; i <= last; i++ {
		n.port = uint8(i)
		if _, err = n.portState(); err == nil {
			return n, nil
		}
	}
	return nil, errors.Join(err, d.Close())
}

// portState is the state of a NIC's port, and its addresses, best first.
type portState struct {
	port verbs.Port
	gids []verbs.GID
}

// portState reads the state of the port. It changes: an interface gets another address,
// or a link that comes up again has its address at another index of the table.
func (n *nic) portState() (portState, error) {
	port, err := n.device.Port(n.port)
	if err == nil && !port.Active {
		err = fmt.Errorf("port %d of %s is not active", n.port, n.device.Name)
	}
	if err != nil {
		return portState{}, err
	}
	n.gidMu.Lock()
	defer n.gidMu.Unlock()
	if len(n.gids) > 0 {
		if now, err := n.device.GID(n.port, n.gids[0].Index); err != nil || now != n.gids[0] {
			n.gids = nil
		}
	}
	if n.gids == nil {
		n.gids = portGIDs(n.device, port, n.config.GID)
	}
	if len(n.gids) == 0 && n.config.GID.IsValid() {
		return portState{}, fmt.Errorf("port %d of %s does not have the address %v", n.port, n.device.Name, n.config.GID)
	}
	if len(n.gids) == 0 && !port.InfiniBand {
		return portState{}, fmt.Errorf("port %d of %s has no GID: give its network interface an address", n.port, n.device.Name)
	}
	return portState{port, slices.Clone(n.gids)}, nil
}

// invalidateGIDs makes the addresses be read again.
func (n *nic) invalidateGIDs() {
	n.gidMu.Lock()
	defer n.gidMu.Unlock()
	n.gids = nil
}

// portGIDs returns the GIDs of a port, best first: on Ethernet the routable ones, IPv4
// before IPv6, then link-local ones, and last those of RoCE v1. On InfiniBand the order
// is that of the table, which the subnet manager decides. If only is valid, other
// addresses are left out.
func portGIDs(d *verbs.Device, p verbs.Port, only netip.Addr) []verbs.GID {
	var out []verbs.GID
	for i := range min(p.GIDs, 255) {
		g, err := d.GID(p.Number, uint8(i))
		if err != nil || g.Address == [16]byte{} { // an unset entry
			continue
		}
		if only.IsValid() && netip.AddrFrom16(g.Address).Unmap() != only.Unmap() {
			continue
		}
		out = append(out, g)
	}
	if !p.InfiniBand {
		slices.SortStableFunc(out, func(a, b verbs.GID) int { return cmp.Compare(gidRank(b), gidRank(a)) })
	}
	return out
}

func gidRank(g verbs.GID) int {
	ip := netip.AddrFrom16(g.Address)
	switch {
	case !g.RoutedIP:
		return 0
	case ip.Is4In6():
		return 3
	case !ip.IsLinkLocalUnicast():
		return 2
	}
	return 1
}

// localEndpoint returns the local endpoint of a pair, with the best address.
func (p portState) localEndpoint(d *verbs.Device, pair *verbs.QueuePair) endpoint {
	e := endpoint{
		pair: pair.Number, psn: rand.Uint32N(1 << 24), lid: p.port.LID, mtu: p.port.MTU, reads: max(min(d.Limits.Reads, 16), 1), link: linkEthernet,
	}
	if p.port.InfiniBand {
		e.link = linkInfiniBand
	}
	if len(p.gids) > 0 {
		e.setGID(p.gids[0])
	}
	return e
}

// endpointFor is localEndpoint with an address of the peer's kind: packets have the same
// header in both directions.
func (p portState) endpointFor(d *verbs.Device, pair *verbs.QueuePair, to endpoint) (endpoint, error) {
	e := p.localEndpoint(d, pair)
	if e.link != linkEthernet || to.link != linkEthernet || to.version == 0 {
		return e, nil
	}
	for _, g := range p.gids {
		if e.setGID(g); e.version == to.version && (e.version == 1 || netip.AddrFrom16(e.gid).Is4In6() == netip.AddrFrom16(to.gid).Is4In6()) {
			return e, nil
		}
	}
	return e, fmt.Errorf("the peer uses %v with RoCE v%d, and port %d of %s has no address of that kind", netip.AddrFrom16(to.gid).Unmap(), to.version, p.port.Number, d.Name)
}

// close closes the device, which has no users any more.
func (n *nic) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	for _, r := range n.regions {
		err = errors.Join(err, r.close())
	}
	n.regions = nil
	return errors.Join(err, n.device.Close())
}

// region is registered memory, a pool or bounce buffers. It holds the memory.
type region struct {
	*verbs.MemoryRegion
	memory  *transport.Memory
	users   int
	retired bool // whether it was deregistered under its users, or must not be reused
	// pool is the pool that the bounce buffers serve, with so many bytes each; nil for a
	// pool.
	pool        *transport.Memory
	bufferBytes int64
}

func (r *region) close() error {
	if err := r.MemoryRegion.Close(); err != nil {
		return fmt.Errorf("deregister memory, which is never released now: %w", err)
	}
	r.memory.Release()
	return nil
}

// acquirePool returns the region of a memory, which the caller holds, and registers it if
// necessary. It is given back by releaseRegion.
func (n *nic) acquirePool(m *transport.Memory) (*region, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.regions {
		if r.memory == m && !r.retired {
			r.users++
			return r, nil
		}
	}
	r, err := newRegion(n.device, m)
	if err == nil {
		n.regions = append(n.regions, r)
	}
	return r, err
}

// newRegion registers a memory for one user.
func newRegion(d *verbs.Device, m *transport.Memory) (*region, error) {
	if !m.Hold() {
		return nil, errors.New("the engine is away")
	}
	made, err := register(d, m)
	if err != nil {
		m.Release()
		return nil, err
	}
	return &region{MemoryRegion: made, memory: m, users: 1}, nil
}

// deregister ends a registration under its users.
func (n *nic) deregister(r *region) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.retired = true
	return r.MemoryRegion.Close()
}

// releaseRegion ends one use.
func (n *nic) releaseRegion(r *region, p transport.Pool) error {
	n.mu.Lock()
	r.users--
	n.mu.Unlock()
	return n.closeUnused(p)
}

// setKeepIdle sets whether the region of the engine's memory is kept without users.
func (n *nic) setKeepIdle(kept bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keepIdle = kept
}

// closeUnused ends the registrations without users, except for the engine's present
// memory and some of its bounce buffers.
func (n *nic) closeUnused(p transport.Pool) error {
	current, _ := p.Memory()
	n.mu.Lock()
	var ended []*region
	kept, idle := n.regions[:0], int64(0)
	for _, r := range n.regions {
		stays := n.keepIdle && !r.retired && r.memory == current
		if n.keepIdle && !r.retired && r.users == 0 && r.pool != nil && r.pool == current {
			stays = idle == 0 || idle+int64(len(r.memory.Bytes)) <= maxIdle
			idle += int64(len(r.memory.Bytes))
		}
		if r.users > 0 || stays {
			kept = append(kept, r)
		} else {
			ended = append(ended, r)
		}
	}
	clear(n.regions[len(kept):])
	n.regions = kept
	n.mu.Unlock()
	// This takes milliseconds, and no one finds these regions any more: it needs no lock.
	var err error
	for _, r := range ended {
		err = errors.Join(err, r.close())
	}
	return err
}
