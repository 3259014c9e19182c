// Package inventory reads the hardware of this host: GPUs, NICs, NUMA nodes, memory, and
// the libraries that transports need.
//
// Read returns a topology.Machine, from the GPU driver's library (NVML) and sysfs, and changes
// nothing. Missing hardware is no error: Missing lists it.
//
// OpenNVML loads NVML for further questions: Read returns the GPUs, their links and their access to each
// other, ReadHealth their health, and WatchXids waits for critical errors, which a HealthTracker judges.
//
// # Invariants of NVML
//
//  1. No function is called before nvmlInit has succeeded, and none that the library lacks: both would
//     end the process, without a recoverable panic.
//  2. A call that fails loses only its own result: the rest is returned with the error, which names
//     each call, its GPU and its code.
//  3. What a driver does not support, or is too old for, is left out without an error.
package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// Config says where to read. The zero value reads this host.
type Config struct {
	// Name is the name of the host.
	Name string
	// Sysfs and Proc are the kernel's file systems; "" means /sys and /proc.
	Sysfs, Proc string
	// CUDA, NVML and Verbs are the sonames or paths of the libraries; "" means those of
	// package topology.
	CUDA, NVML, Verbs string
}

// Read reads the inventory. The Machine is what was found, even after an error, which
// joins what failed of hardware that is present.
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

// loadError returns why a library cannot be loaded, "" if it can.
func loadError(path string) string {
	if _, err := device.Load(path); err != nil {
		return describeError(err)
	}
	return ""
}

// describeError shortens an error of package device.
func describeError(err error) string {
	switch {
	case errors.Is(err, device.ErrNoCgo):
		return "this program was built without cgo"
	case errors.Is(err, device.ErrNoLibrary):
		return "it is not on this host: " + strings.TrimPrefix(err.Error(), device.ErrNoLibrary.Error()+": ")
	}
	return err.Error()
}

// readGPUs reads the GPUs from the driver. missing is why there is no driver to ask; the
// error is of calls that failed.
func readGPUs(path string, m *topology.Machine) (missing string, err error) {
	l, err := OpenNVML(NVMLConfig{Library: path})
	if err != nil {
		return describeError(err), nil
	}
	in, err := l.Read()
	m.Driver, m.GPUs, m.Peers = in.Driver, in.GPUs, in.Peers
	return "", errors.Join(err, l.Close())
}

// locateGPUs sets the PCI places of the GPUs, and adds GPUs without a driver.
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
				Index: topology.Unknown, Name: "NVIDIA device", PCI: s.pciDeviceAt(address), Health: topology.Health{Lost: "no driver lists it"},
			})
		}
	}
	for _, n := range m.NUMA {
		if len(m.NUMA) > 1 {
			break // firmware reports no node if there is only one
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

// peerMemory returns how a NIC reads GPU memory, "" if it cannot. Only dma-buf counts:
// nvidia_peermem is for programs that register pointers of their own.
func (s sysfs) peerMemory() string {
	if s.openDriver() {
		return "dma-buf"
	}
	return ""
}

// Missing lists, for people, what the host lacks: libraries, and what prevents the use of
// the rest.
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
		out = append(out, "no GPUDirect RDMA: it needs the open kernel modules of the NVIDIA driver, which export GPU memory as a dma-buf")
	}
	switch ports := slices.DeleteFunc(slices.Clone(m.NICs), func(n topology.NIC) bool { return n.RDMA == "" }); {
	case len(ports) == 0:
		out = append(out, "no RDMA device was found")
	case !slices.ContainsFunc(ports, func(n topology.NIC) bool { return n.Up }):
		out = append(out, "no port of an RDMA device is up")
	}
	return out
}
