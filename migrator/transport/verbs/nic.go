package verbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// nic is an open device and what is registered with it. It lives for as long as
// anybody uses it.
type nic struct {
	device *verbs.Device
	port   verbs.Port
	gid    verbs.GID

	users int // guarded by Transport.mu

	mu      sync.Mutex
	regions []*region
	kept    bool // whether a region without users may stay
}

// openNIC opens the device of that name, or the first that has an active port.
func openNIC(lib *verbs.Library, name string) (*nic, error) {
	names := []string{name}
	if name == "" {
		var err error
		if names, err = lib.Devices(); err != nil {
			return nil, err
		}
	}
	errs := []error{errors.New("no RDMA device with an active port")}
	for _, name := range names {
		n, err := openNamed(lib, name)
		if err == nil {
			return n, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func openNamed(lib *verbs.Library, name string) (*nic, error) {
	d, err := lib.Device(name)
	if err != nil {
		return nil, err
	}
	n := &nic{device: d}
	for i := 1; i <= d.Limits.Ports; i++ {
		if n.port, err = d.Port(uint8(i)); err != nil || !n.port.Active {
			continue
		}
		if n.gid, err = address(d, n.port); err == nil {
			return n, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("%s: no port is active", name)
	}
	return nil, errors.Join(err, d.Close())
}

// address chooses a port's GID: the first of InfiniBand; on Ethernet one that
// routers know, of IPv4 rather than of IPv6, and of this link alone at last.
func address(d *verbs.Device, p verbs.Port) (best verbs.GID, err error) {
	rank := 0
	for i := range min(p.GIDs, 255) {
		g, err := d.GID(p.Number, uint8(i))
		if err != nil || g.Address == [16]byte{} {
			continue // an entry that is not set
		}
		r := 1
		switch {
		case p.InfiniBand:
			return g, nil
		case !g.RoutedIP:
		case g.Address[10] == 0xff && g.Address[11] == 0xff && g.Address[0] == 0:
			r = 4
		case g.Address[0] != 0xfe:
			r = 3
		default:
			r = 2
		}
		if r > rank {
			best, rank = g, r
		}
	}
	if rank == 0 && !p.InfiniBand {
		err = fmt.Errorf("port %d of %s has no GID: its network interface has no address", p.Number, d.Name)
	}
	return best, err
}

// end is the own end of a connection by a pair.
func (n *nic) end(p *verbs.Pair) end {
	e := end{
		gid: n.gid.Address, pair: p.Number, psn: rand.Uint32N(1 << 24), lid: n.port.LID, mtu: n.port.MTU, reads: max(min(n.device.Limits.Reads, 16), 1), link: linkEthernet,
	}
	if n.port.InfiniBand {
		e.link = linkInfiniBand
	}
	return e
}

// close closes the device. Nobody uses it any more.
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

// region is a registered pool. It holds the pool's memory.
type region struct {
	*verbs.Region
	memory *transport.Memory
	users  int
	over   bool // it was ended under its users; nobody new gets it
}

func (r *region) close() error {
	if err := r.Region.Close(); err != nil {
		return fmt.Errorf("memory stays registered, and is not given back: %w", err)
	}
	r.memory.Release()
	return nil
}

// registered finds the region of a memory, which the caller holds, or makes it. It
// is left by leave.
func (n *nic) registered(m *transport.Memory) (*region, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.regions {
		if r.memory == m && !r.over {
			r.users++
			return r, nil
		}
	}
	if !m.Hold() {
		return nil, errors.New("the engine has gone")
	}
	made, err := register(n.device, m)
	if err != nil {
		m.Release()
		return nil, err
	}
	r := &region{Region: made, memory: m, users: 1}
	n.regions = append(n.regions, r)
	return r, nil
}

// endRegion ends a registration under its users.
func (n *nic) endRegion(r *region) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.over = true
	return r.Region.Close()
}

// leave ends one use.
func (n *nic) leave(r *region, p transport.Pool) error {
	n.mu.Lock()
	r.users--
	n.mu.Unlock()
	return n.tidy(p)
}

// keep says whether the region of the engine's memory stays without users.
func (n *nic) keep(kept bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = kept
}

// tidy ends the registrations that nobody uses, except for that of the engine's
// present memory.
func (n *nic) tidy(p transport.Pool) error {
	current, _ := p.Memory()
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	kept := n.regions[:0]
	for _, r := range n.regions {
		if r.users > 0 || n.kept && r.memory == current && !r.over {
			kept = append(kept, r)
			continue
		}
		err = errors.Join(err, r.close())
	}
	clear(n.regions[len(kept):])
	n.regions = kept
	return err
}
