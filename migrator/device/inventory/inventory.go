// Package inventory finds out what this machine has: GPUs, NICs, NUMA nodes,
// memory, and the libraries that transports need.
//
// It asks the driver (package nvml) and reads sysfs, and changes nothing. A machine
// without any of it is a machine with little: what is missing is said, and is no
// error. What a topology.Machine means is package topology's to say.
package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/nvml"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// Config says where to look. The zero value is this machine.
type Config struct {
	// Name is the node's.
	Name string
	// Sysfs and Proc are where the kernel shows itself; "" means /sys and /proc.
	Sysfs, Proc string
	// CUDA, NVML and Verbs are the sonames or paths of the libraries; "" means
	// those that topology names.
	CUDA, NVML, Verbs string
}

// Read takes stock. The Machine is what was found, whatever the error: that
// joins what went wrong where something should have been.
func Read(cfg Config) (*topology.Machine, error) {
	s := sysfs{root: cmp.Or(cfg.Sysfs, "/sys"), proc: cmp.Or(cfg.Proc, "/proc")}
	m := &topology.Machine{Name: cfg.Name}
	m.NUMA, m.Memory = s.readMemory()
	m.NICs = s.readNICs()
	var err error
	m.Libraries = []topology.Library{
		{Name: topology.NVML, For: "GPUs, their links and health"},
		{Name: topology.CUDA, For: "transport cuda", Missing: loadError(cmp.Or(cfg.CUDA, topology.CUDA))},
		{Name: topology.Verbs, For: "transport verbs", Missing: loadError(cmp.Or(cfg.Verbs, topology.Verbs))},
	}
	m.Libraries[0].Missing, err = readGPUs(cmp.Or(cfg.NVML, topology.NVML), m)
	s.locateGPUs(m)
	if len(m.GPUs) > 0 {
		m.PeerMemory = s.peerMemory()
	}
	return m, err
}

// loadError says why a library cannot be used, "" when it can.
func loadError(path string) string {
	if _, err := device.Load(path); err != nil {
		return describeError(err)
	}
	return ""
}

// describeError is an error in few words.
func describeError(err error) string {
	switch {
	case errors.Is(err, device.ErrNoCgo):
		return "this program was built without cgo"
	case errors.Is(err, device.ErrNoLibrary):
		return "it is not on this machine: " + strings.TrimPrefix(err.Error(), device.ErrNoLibrary.Error()+": ")
	}
	return err.Error()
}

// readGPUs asks the driver. What it says is why there is nothing to ask; the error is
// of calls that failed.
func readGPUs(path string, m *topology.Machine) (missing string, err error) {
	l, err := nvml.Open(nvml.Config{Library: path})
	if err != nil {
		return describeError(err), nil
	}
	in, err := l.Read()
	m.Driver, m.GPUs, m.Peers = in.Driver, in.GPUs, in.Peers
	return "", errors.Join(err, l.Close())
}

// locateGPUs says where in the machine its GPUs are, and adds those that have no driver.
func (s sysfs) locateGPUs(m *topology.Machine) {
	known := map[string]bool{}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		known[g.PCI.Address] = true
		at := s.pciDeviceAt(g.PCI.Address)
		g.PCI.Path = at.Path
		if at.NUMA != topology.Unknown {
			g.PCI.NUMA = at.NUMA
		}
		if g.PCI.Link == (topology.PCIe{}) {
			g.PCI.Link = at.Link
		}
	}
	for _, address := range s.nvidiaGPUs() {
		if !known[address] {
			m.GPUs = append(m.GPUs, topology.GPU{
				Index: topology.Unknown, Name: "NVIDIA device", PCI: s.pciDeviceAt(address), Health: topology.Health{Lost: "it is in the machine, and no driver shows it"},
			})
		}
	}
	for _, n := range m.NUMA {
		if len(m.NUMA) > 1 {
			break // firmware says nothing where there is only one node
		}
		for i := range m.GPUs {
			m.GPUs[i].PCI.NUMA = max(m.GPUs[i].PCI.NUMA, n.ID)
		}
		for i := range m.NICs {
			if !m.NICs[i].Virtual {
				m.NICs[i].PCI.NUMA = max(m.NICs[i].PCI.NUMA, n.ID)
			}
		}
	}
}

// peerMemory is by what a NIC reads GPU memory, "" for nothing. It is dma-buf alone:
// nvidia_peermem is for those who register pointers of their own.
func (s sysfs) peerMemory() string {
	if s.openDriver() {
		return "dma-buf"
	}
	return ""
}

// Missing are lines about what the machine lacks, for people: libraries, and what
// keeps the rest from being used.
func Missing(m *topology.Machine) []string {
	var out []string
	for _, l := range m.Libraries {
		if l.Missing != "" {
			out = append(out, fmt.Sprintf("%s (for %s): %s", l.Name, l.For, l.Missing))
		}
	}
	if len(m.GPUs) == 0 {
		out = append(out, "no GPU was found")
	} else if m.PeerMemory == "" {
		out = append(out, "no GPUDirect RDMA: the driver is not an open one, which offers GPU memory as a dma-buf")
	}
	switch ports := slices.DeleteFunc(slices.Clone(m.NICs), func(n topology.NIC) bool { return n.RDMA == "" }); {
	case len(ports) == 0:
		out = append(out, "no RDMA device was found")
	case !slices.ContainsFunc(ports, func(n topology.NIC) bool { return n.Up }):
		out = append(out, "no port of an RDMA device is up")
	}
	return out
}
