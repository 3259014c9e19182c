package topology

import (
	"strconv"

	"github.com/cascadeinfer/cascade/policies/links"
)

// Adapter is the RDMA port by which a replica's blocks are to travel. The zero Adapter
// is the one that is up and lies nearest to its KV cache.
type Adapter struct {
	// Off has blocks travel by other ways alone.
	Off bool `json:"off,omitempty"`
	// Device is the name of the RDMA device; "" for the nearest.
	Device string `json:"device,omitempty"`
	// Port is the device's port, from 1; 0 for its first that is up.
	Port int `json:"port,omitempty"`
}

// selectPort is the RDMA port that an adapter stands for, of a replica whose KV cache is on
// that GPU, nil for none. why says why a port that somebody has named, or RDMA as a
// whole, is not to be had.
func (m *Machine) selectPort(a Adapter, gpu *PCI) (p *links.Port, why string) {
	if a.Off {
		return nil, "RDMA is switched off in the fleet file"
	}
	if n := m.nearestPort(a, gpu); n != nil {
		return &links.Port{
			Name: truncate(n.Name, links.MaxText), Layer: truncate(n.RDMA, links.MaxText), Subnet: truncate(n.Subnet, links.MaxText), Rate: n.Rate, Distance: n.distanceTo(gpu),
		}, ""
	}
	if a.Device == "" {
		return nil, ""
	}
	device, port := false, false
	for _, n := range m.NICs {
		if n.RDMA != "" && n.Name == a.Device {
			device, port = true, port || a.Port == 0 || n.Port == a.Port
		}
	}
	number := strconv.Itoa(a.Port)
	switch {
	case !device:
		why = "RDMA device " + a.Device + ", which is not there"
	case !port:
		why = "port " + number + " of " + a.Device + ", which has no such port"
	case a.Port == 0:
		why = a.Device + ", of which no port is up"
	default:
		why = "port " + number + " of " + a.Device + ", which is not up"
	}
	return nil, "the fleet file names " + why
}

// nearestPort is the adapter's port that is up and lies nearest to the replica's GPU; the
// faster one among equals, then the first. Of a device's ports it is the first that is
// up, as transports have it. nil for none.
func (m *Machine) nearestPort(a Adapter, gpu *PCI) (best *NIC) {
	first := make(map[string]int)
	for _, n := range m.NICs {
		if at, ok := first[n.Name]; n.RDMA != "" && n.Up && (!ok || n.Port < at) {
			first[n.Name] = n.Port
		}
	}
	for i := range m.NICs {
		n := &m.NICs[i]
		number := a.Port
		if number == 0 {
			number = first[n.Name]
		}
		if n.RDMA == "" || !n.Up || n.Port != number || a.Device != "" && n.Name != a.Device {
			continue
		}
		if best == nil || n.distanceTo(gpu) < best.distanceTo(gpu) || n.distanceTo(gpu) == best.distanceTo(gpu) && n.Rate > best.Rate {
			best = n
		}
	}
	return best
}

// distanceTo is how far a NIC is from a replica's KV cache on a GPU; nil is none.
func (n *NIC) distanceTo(gpu *PCI) Distance {
	if gpu == nil {
		return Far
	}
	return Between(*gpu, n.PCI)
}
