// Package topology describes machines: what they have, and what lies between it. Of
// a machine it makes what pairs of replicas need to know of each end, a links.Topology;
// package links says how bytes get from one to the other.
//
// It finds nothing out and moves nothing. A Machine is inert data, which package
// inventory fills and which travels between machines as JSON; everything else is
// a pure function of it, in integers.
package topology

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
)

// Machine is what is known of one node.
type Machine struct {
	Name   string `json:"name"`
	Memory Memory `json:"memory"`
	NUMA   []NUMA `json:"numa,omitempty"`
	GPUs   []GPU  `json:"gpus,omitempty"` // by index
	// Peers says what pairs of GPUs may do to each other's memory, each pair both
	// ways; a pair that is missing was not asked about.
	Peers []Peer `json:"peers,omitempty"`
	NICs  []NIC  `json:"nics,omitempty"`
	// Libraries are those that transports need, present or not.
	Libraries []Library `json:"libraries"`
	// PeerMemory says by which means a NIC reads GPU memory: "dma-buf"; "" for none.
	PeerMemory string `json:"peer_memory,omitempty"`
	// Driver is the GPU driver's version, "" without one.
	Driver string `json:"driver,omitempty"`
}

// Memory is sizes in bytes; 0 for unknown.
type Memory struct {
	Total policies.Bytes `json:"total"`
	Free  policies.Bytes `json:"free"`
}

// NUMA is one NUMA node of a machine.
type NUMA struct {
	ID       int    `json:"id"`
	CPUs     string `json:"cpus"` // as the kernel lists them: 0-31,64-95
	Memory   Memory `json:"memory"`
	Distance []int  `json:"distance,omitempty"` // to each node, in the firmware's unit: 10 is the own one
}

// Unknown as a NUMA node or a GPU's index is none.
const Unknown = -1

// PCI is where a device is plugged in.
type PCI struct {
	Address string `json:"address,omitempty"` // 0000:1b:00.0
	// Path is the way from the root complex to the device, both included:
	// pci0000:16, then one bridge after the other. Empty when it is not known.
	Path []string `json:"path,omitempty"`
	NUMA int      `json:"numa"` // Unknown for none
	// Link is the device's own; the slowest one on its path may be slower.
	Link PCIe `json:"link"`
}

// PCIe is the speed of a PCIe link; zeros are unknown.
type PCIe struct {
	Gen      int `json:"gen"`
	Width    int `json:"width"`
	MaxGen   int `json:"max_gen"`
	MaxWidth int `json:"max_width"`
}

// Rate is what the link carries each way at its best: links that save power run
// slower until there is work.
func (l PCIe) Rate() Rate {
	gen, width := max(l.Gen, l.MaxGen), max(l.Width, l.MaxWidth)
	if l.MaxWidth > 0 && l.Width > 0 {
		width = l.Width // a link does not get wider by itself
	}
	lane := [...]Rate{0, 250, 500, 985, 1969, 3938, 7563}
	if gen < 1 || gen >= len(lane) {
		return 0
	}
	return lane[gen] * Megabyte * Rate(width)
}

// GPU is one GPU. Fields that the driver did not offer are zero.
type GPU struct {
	Index  int    `json:"index"`
	UUID   string `json:"uuid"`
	Name   string `json:"name"`
	Memory Memory `json:"memory"`
	// Copy is how fast the GPU copies within its memory.
	Copy    Rate     `json:"copy"`
	PCI     PCI      `json:"pci"`
	NVLinks []NVLink `json:"nvlinks,omitempty"`
	// MIG means that the GPU is divided into instances, whose memories are apart.
	MIG    bool   `json:"mig,omitempty"`
	Health Health `json:"health"`
}

// NVLink is one link of a GPU.
type NVLink struct {
	Link   int  `json:"link"`
	Active bool `json:"active"`
	// Version is NVLink's, 1 to 6; 0 for unknown.
	Version int `json:"version"`
	// Remote is the PCI address of the device at the other end; Switch means that
	// it is an NVSwitch and reaches every GPU that has one of its own.
	Remote string `json:"remote,omitempty"`
	Switch bool   `json:"switch,omitempty"`
}

// Rate is what the link carries each way; 0 while it is down.
func (l NVLink) Rate() Rate {
	if !l.Active {
		return 0
	}
	switch {
	case l.Version == 1:
		return 20 * Gigabyte
	case l.Version == 5:
		return 50 * Gigabyte
	case l.Version >= 6:
		return 100 * Gigabyte
	}
	return 25 * Gigabyte
}

// Health is what is wrong with a GPU. The zero value is a healthy one, or one
// about which the driver says nothing.
type Health struct {
	// Lost is why the GPU cannot be used at all; "" for nothing.
	Lost string `json:"lost,omitempty"`
	// ECC counts uncorrected memory errors since the driver was loaded.
	ECC uint64 `json:"ecc,omitempty"`
	// Remap means that a row of memory is to be replaced: the GPU needs a reset;
	// RemapFailed, that there was none left to replace it by.
	Remap       bool `json:"remap,omitempty"`
	RemapFailed bool `json:"remap_failed,omitempty"`
	// Throttled are the reasons why the clocks are down, other than idleness.
	Throttled []string `json:"throttled,omitempty"`
	// Xid is the last critical error that was seen while somebody watched.
	Xid uint64 `json:"xid,omitempty"`
}

// Problem is the worst of it in words; "" for none. A GPU that throttles works.
func (h Health) Problem() string {
	switch {
	case h.Lost != "":
		return h.Lost
	case h.Xid != 0:
		return fmt.Sprintf("Xid %d", h.Xid)
	case h.RemapFailed:
		return "its memory could not be repaired: replace it"
	case h.Remap:
		return "its memory has rows to be replaced: reset it"
	case h.ECC != 0:
		return fmt.Sprintf("%d uncorrected memory errors", h.ECC)
	}
	return ""
}

// Peer is what GPU From may do to the memory of GPU To, by index.
type Peer struct {
	From   int  `json:"from"`
	To     int  `json:"to"`
	Read   bool `json:"read"`
	Write  bool `json:"write"`
	NVLink bool `json:"nvlink"`
	// Distance is what the driver says lies between them; Far for unknown.
	Distance Distance `json:"distance"`
}

// NIC is a network interface, or one port of an RDMA device.
type NIC struct {
	Name string `json:"name"` // eth0, or mlx5_0
	Port int    `json:"port,omitempty"`
	// RDMA is the link layer of an RDMA device, InfiniBand or Ethernet; "" for an
	// interface that speaks IP.
	RDMA string `json:"rdma,omitempty"`
	// Subnet is the prefix of an InfiniBand port's subnet, where an operator has given
	// it one of its own: ports in different ones do not reach each other.
	Subnet string `json:"subnet,omitempty"`
	PCI    PCI    `json:"pci"`
	Up     bool   `json:"up"`
	// Rate is what the link carries each way; 0 for unknown.
	Rate Rate `json:"rate"`
	// Virtual interfaces have no device of their own.
	Virtual bool `json:"virtual,omitempty"`
}

// The libraries that transports need.
const (
	CUDA  = "libcuda.so.1"
	NVML  = "libnvidia-ml.so.1"
	Verbs = "libibverbs.so.1"
)

// Library is a shared library, and why it cannot be used; "" when it can.
type Library struct {
	Name    string `json:"name"`
	For     string `json:"for"` // what it is needed for
	Missing string `json:"missing,omitempty"`
}

// missingLibrary says why a library cannot be used on the machine, "" when it can.
func (m *Machine) missingLibrary(name string) string {
	for _, l := range m.Libraries {
		if l.Name == name {
			return l.Missing
		}
	}
	return "nobody looked for it"
}

// GPU returns the GPU of that index, or nil.
func (m *Machine) GPU(index int) *GPU {
	for i := range m.GPUs {
		if m.GPUs[i].Index == index {
			return &m.GPUs[i]
		}
	}
	return nil
}
