// Package topology describes hosts: their devices, and the distances between them. From a
// Machine it computes what a pair of replicas needs to know of each end, a
// links.Topology; package links computes the paths of blocks between them.
//
// A Machine is inert data, which package inventory fills and which is sent between hosts
// as JSON. Everything else is a pure function of it, in integers. The package reads
// nothing from the host.
package topology

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Machine is what is known of one host.
type Machine struct {
	Name   string `json:"name"`
	Memory Memory `json:"memory"`
	NUMA   []NUMA `json:"numa,omitempty"`
	GPUs   []GPU  `json:"gpus,omitempty"` // by index
	// Peers lists what pairs of GPUs may access of each other's memory, in both
	// directions; a missing pair is unknown.
	Peers []Peer `json:"peers,omitempty"`
	NICs  []NIC  `json:"nics,omitempty"`
	// Libraries are those that transports need, present or not.
	Libraries []Library `json:"libraries"`
	// PeerMemory is how a NIC reads GPU memory: "dma-buf"; "" for none.
	PeerMemory string `json:"peer_memory,omitempty"`
	// Driver is the version of the GPU driver, "" without one.
	Driver string `json:"driver,omitempty"`
}

// Memory is sizes in bytes; 0 means unknown.
type Memory struct {
	Total policies.Bytes `json:"total"`
	Free  policies.Bytes `json:"free"`
}

// NUMA is one NUMA node of a host.
type NUMA struct {
	ID       int    `json:"id"`
	CPUs     string `json:"cpus"` // as the kernel lists them: 0-31,64-95
	Memory   Memory `json:"memory"`
	Distance []int  `json:"distance,omitempty"` // to each node, in the firmware's unit: 10 is the node itself
}

// Unknown, as a NUMA node or the index of a GPU, means none.
const Unknown = -1

// PCI is the place of a PCI device.
type PCI struct {
	Address string `json:"address,omitempty"` // 0000:1b:00.0
	// Path is the path from the root complex to the device, including both: pci0000:16,
	// then the bridges. It is empty if it is unknown.
	Path []string `json:"path,omitempty"`
	NUMA int      `json:"numa"` // Unknown for none
	// Link is the link of the device; a link on its path may be slower.
	Link PCIe `json:"link"`
}

// PCIe is the speed of a PCIe link; zeros mean unknown.
type PCIe struct {
	Gen      int `json:"gen"`
	Width    int `json:"width"`
	MaxGen   int `json:"max_gen"`
	MaxWidth int `json:"max_width"`
}

// Rate returns the highest rate of the link in each direction: links that save power are
// slower until they are used.
func (l PCIe) Rate() links.Rate {
	gen, width := max(l.Gen, l.MaxGen), max(l.Width, l.MaxWidth)
	if l.MaxWidth > 0 && l.Width > 0 {
		width = l.Width // a link does not get wider by itself
	}
	lane := [...]links.Rate{0, 250, 500, 985, 1969, 3938, 7563}
	if gen < 1 || gen >= len(lane) {
		return 0
	}
	return lane[gen] * links.Megabyte * links.Rate(width)
}

// GPU is one GPU. Fields that the driver does not report are zero.
type GPU struct {
	Index  int    `json:"index"`
	UUID   string `json:"uuid"`
	Name   string `json:"name"`
	Memory Memory `json:"memory"`
	// Copy is the rate of copies within the GPU's memory.
	Copy    links.Rate `json:"copy"`
	PCI     PCI        `json:"pci"`
	NVLinks []NVLink   `json:"nvlinks,omitempty"`
	// MIG means that the GPU is divided into instances with separate memories.
	MIG    bool   `json:"mig,omitempty"`
	Health Health `json:"health"`
}

// NVLink is one link of a GPU.
type NVLink struct {
	Link   int  `json:"link"`
	Active bool `json:"active"`
	// Version is the version of NVLink, 1 to 6; 0 means unknown.
	Version int `json:"version"`
	// Remote is the PCI address of the device at the other end; Switch means that it is
	// an NVSwitch, which reaches every GPU that is connected to an NVSwitch.
	Remote string `json:"remote,omitempty"`
	Switch bool   `json:"switch,omitempty"`
}

// Rate returns the rate of the link in each direction; 0 while it is down.
func (l NVLink) Rate() links.Rate {
	if !l.Active {
		return 0
	}
	switch {
	case l.Version == 1:
		return 20 * links.Gigabyte
	case l.Version == 5:
		return 50 * links.Gigabyte
	case l.Version >= 6:
		return 100 * links.Gigabyte
	}
	return 25 * links.Gigabyte
}

// Health is what is wrong with a GPU. The zero value means a healthy GPU, or one about
// which the driver reports nothing.
type Health struct {
	// Lost is why the GPU cannot be used at all; "" if it can.
	Lost string `json:"lost,omitempty"`
	// ECC counts uncorrected memory errors since the driver was loaded.
	ECC uint64 `json:"ecc,omitempty"`
	// Remap means that a row of memory will be remapped at the next reset; RemapFailed,
	// that no spare row was left.
	Remap       bool `json:"remap,omitempty"`
	RemapFailed bool `json:"remap_failed,omitempty"`
	// Throttled are the reasons for low clocks other than idleness.
	Throttled []string `json:"throttled,omitempty"`
}

// Problem describes the worst problem, "" for none. Throttling is no problem.
func (h Health) Problem() string {
	switch {
	case h.Lost != "":
		return h.Lost
	case h.RemapFailed:
		return "its memory could not be repaired: replace the GPU"
	case h.Remap:
		return "its memory has rows to be remapped: reset the GPU"
	case h.ECC != 0:
		return fmt.Sprintf("%d uncorrected memory errors", h.ECC)
	}
	return ""
}

// Peer is what GPU From may access of the memory of GPU To, by index.
type Peer struct {
	From   int  `json:"from"`
	To     int  `json:"to"`
	Read   bool `json:"read"`
	Write  bool `json:"write"`
	NVLink bool `json:"nvlink"`
	// Distance is the driver's distance between them; UnknownDistance means unknown.
	Distance links.Distance `json:"distance"`
}

// NIC is a network interface, or one port of an RDMA device.
type NIC struct {
	Name string `json:"name"` // eth0, or mlx5_0
	Port int    `json:"port,omitempty"`
	// RDMA is the link layer of an RDMA device, InfiniBand or Ethernet; "" for an IP
	// interface.
	RDMA string `json:"rdma,omitempty"`
	// Subnet is the prefix of an InfiniBand port's subnet if it is not the default: ports
	// in different subnets do not reach each other.
	Subnet string `json:"subnet,omitempty"`
	PCI    PCI    `json:"pci"`
	Up     bool   `json:"up"`
	// Rate is the rate of the link in each direction; 0 means unknown.
	Rate links.Rate `json:"rate"`
	// Virtual interfaces have no device.
	Virtual bool `json:"virtual,omitempty"`
}

// The libraries that transports need.
const (
	CUDA  = "libcuda.so.1"
	NVML  = "libnvidia-ml.so.1"
	Verbs = "libibverbs.so.1"
)

// Library is a shared library, and why it cannot be used; "" if it can.
type Library struct {
	Name    string `json:"name"`
	For     string `json:"for"` // what needs it
	Missing string `json:"missing,omitempty"`
}

// missingLibrary returns why a library cannot be used on the host, "" if it can.
func (m *Machine) missingLibrary(name string) string {
	for _, l := range m.Libraries {
		if l.Name == name {
			return l.Missing
		}
	}
	return "it was not looked up"
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
