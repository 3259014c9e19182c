package topology

import (
	"strconv"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Adapter is the RDMA port for a replica's blocks. The zero Adapter is the active port
// that is nearest to its KV cache.
type Adapter struct {
	// Off excludes RDMA.
	Off bool `json:"off,omitempty"`
	// Device is the name of the RDMA device; "" means the nearest one.
	Device string `json:"device,omitempty"`
	// Port is the device's port, from 1; 0 means its first active one.
	Port int `json:"port,omitempty"`
}

// selectPort returns the RDMA port of an adapter, for a replica whose KV cache is on that
// GPU, nil for none. why says why a port that the fleet file names, or RDMA as a whole,
// is not available.
func (m *Machine) selectPort(a Adapter, gpu *PCI) (p *links.Port, why string) {
	if a.Off {
		return nil, "tls.plaintext in the fleet file does not list rdma"
	}
	if n := m.nearestPort(a, gpu); n != nil {
		return &links.Port{
			Name: cleantext.Truncate(n.Name, links.MaxText), Layer: cleantext.Truncate(n.RDMA, links.MaxText), Subnet: cleantext.Truncate(n.Subnet, links.MaxText), Rate: n.Rate, Distance: n.distanceTo(gpu),
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
		why = "RDMA device " + a.Device + ", which does not exist"
	case !port:
		why = "port " + number + " of " + a.Device + ", which has no such port"
	case a.Port == 0:
		why = a.Device + ", which has no active port"
	default:
		why = "port " + number + " of " + a.Device + ", which is not active"
	}
	return nil, "the fleet file names " + why
}

// nearestPort returns the adapter's active port that is nearest to the replica's GPU, nil
// for none; the faster one among equals, then the first. Of each device it considers the
// first active port, as transports do.
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

// distanceTo returns the distance of a NIC from a replica's KV cache on a GPU; nil means
// host memory.
func (n *NIC) distanceTo(gpu *PCI) links.Distance {
	if gpu == nil {
		return links.UnknownDistance
	}
	return Between(*gpu, n.PCI)
}
