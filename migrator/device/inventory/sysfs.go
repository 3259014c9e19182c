package inventory

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Bounds of reads from sysfs.
const (
	maxFile    = 64 << 10 // bytes of one file
	maxEntries = 4096     // of one directory
)

// sysfs reads files of the kernel. Missing files read as zeros.
type sysfs struct{ root, proc string }

// readText returns the content of a file without surrounding space, "" if there is none.
func readText(path ...string) string {
	f, err := os.Open(filepath.Join(path...))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return "" // reading the speed of a link that is down fails
	}
	return strings.TrimSpace(string(b))
}

// readInt returns the number in a file, or otherwise.
func readInt(otherwise int, path ...string) int {
	n, err := strconv.Atoi(readText(path...))
	if err != nil {
		return otherwise
	}
	return n
}

// listDir returns the sorted names in a directory.
func (s sysfs) listDir(path ...string) []string {
	f, err := os.Open(filepath.Join(append([]string{s.root}, path...)...))
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxEntries)
	slices.Sort(names)
	return names
}

func (s sysfs) exists(path ...string) bool {
	_, err := os.Stat(filepath.Join(append([]string{s.root}, path...)...))
	return err == nil
}

// readMemory reads the NUMA nodes and their memory; a kernel without NUMA has its memory
// in /proc.
func (s sysfs) readMemory() (nodes []topology.NUMA, all topology.Memory) {
	for _, name := range s.listDir("devices", "system", "node") {
		id, err := strconv.Atoi(strings.TrimPrefix(name, "node"))
		if err != nil || !strings.HasPrefix(name, "node") {
			continue
		}
		dir := filepath.Join(s.root, "devices", "system", "node", name)
		n := topology.NUMA{ID: id, CPUs: readText(dir, "cpulist"), Memory: parseMeminfo(readText(dir, "meminfo"))}
		for _, f := range strings.Fields(readText(dir, "distance")) {
			if d, err := strconv.Atoi(f); err == nil {
				n.Distance = append(n.Distance, d)
			}
		}
		all.Total, all.Free = all.Total+n.Memory.Total, all.Free+n.Memory.Free
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b topology.NUMA) int { return a.ID - b.ID })
	if len(nodes) == 0 {
		all = parseMeminfo(readText(s.proc, "meminfo"))
	}
	return nodes, all
}

// parseMeminfo parses the total and the free memory, with or without "Node 0" in front.
func parseMeminfo(t string) (m topology.Memory) {
	for line := range strings.Lines(t) {
		f := strings.Fields(line)
		for i := 0; i+1 < len(f); i++ {
			kib, err := strconv.ParseInt(f[i+1], 10, 64)
			if err != nil || kib < 0 || kib > 1<<50 {
				continue
			}
			switch f[i] {
			case "MemTotal:":
				m.Total = policies.Bytes(kib) << 10
			case "MemFree:":
				m.Free = policies.Bytes(kib) << 10
			}
		}
	}
	return m
}

// pciAddress matches a PCI address.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pciDeviceAt returns the place of a PCI device.
func (s sysfs) pciDeviceAt(address string) topology.PCI {
	if !pciAddress.MatchString(address) {
		return topology.PCI{Address: address, NUMA: topology.Unknown}
	}
	p := s.pciDevice(filepath.Join(s.root, "bus", "pci", "devices", address))
	p.Address = address
	return p
}

// pciDevice follows a link to a device and returns the PCI device that it is, or is
// attached to.
func (s sysfs) pciDevice(link string) topology.PCI {
	p := topology.PCI{NUMA: topology.Unknown}
	at, err := filepath.EvalSymlinks(link)
	if err != nil {
		return p
	}
	var dir, found string
	for _, name := range strings.Split(at, "/") {
		dir += name + "/"
		switch {
		case len(p.Path) == 0 && strings.HasPrefix(name, "pci") && strings.Contains(name, ":"):
			p.Path = append(p.Path, name)
		case len(p.Path) > 0 && pciAddress.MatchString(name):
			p.Path = append(p.Path, name)
			p.Address, found = name, dir
		}
	}
	if found == "" {
		return topology.PCI{NUMA: topology.Unknown}
	}
	p.NUMA = max(topology.Unknown, readInt(topology.Unknown, found, "numa_node"))
	p.Link = topology.PCIe{
		Gen: pcieGeneration(readText(found, "current_link_speed")), Width: readInt(0, found, "current_link_width"),
		MaxGen: pcieGeneration(readText(found, "max_link_speed")), MaxWidth: readInt(0, found, "max_link_width"),
	}
	return p
}

// pcieGeneration returns the PCIe generation of a speed such as "16.0 GT/s PCIe".
func pcieGeneration(speed string) int {
	f := strings.Fields(speed)
	if len(f) == 0 {
		return 0
	}
	return max(0, slices.Index([]string{"", "2.5", "5.0", "8.0", "16.0", "32.0", "64.0"}, f[0]))
}

// nvidiaGPUs returns the PCI addresses of NVIDIA's GPUs, without their audio and USB
// functions.
func (s sysfs) nvidiaGPUs() (out []string) {
	for _, address := range s.listDir("bus", "pci", "devices") {
		dir := filepath.Join(s.root, "bus", "pci", "devices", address)
		if readText(dir, "vendor") == "0x10de" && (strings.HasPrefix(readText(dir, "class"), "0x0302") || strings.HasPrefix(readText(dir, "class"), "0x0300")) {
			out = append(out, address)
		}
	}
	return out
}

// readNICs returns the network interfaces, then the ports of RDMA devices, by name.
func (s sysfs) readNICs() (out []topology.NIC) {
	const loopback = "772" // ARPHRD_LOOPBACK
	for _, name := range s.listDir("class", "net") {
		dir := filepath.Join(s.root, "class", "net", name)
		if kind := readText(dir, "type"); kind == "" || kind == loopback {
			continue
		}
		n := topology.NIC{
			Name: name, PCI: s.pciDevice(filepath.Join(dir, "device")), Up: readText(dir, "operstate") == "up", Virtual: !s.exists("class", "net", name, "device"),
			Rate: links.Rate(max(0, readInt(0, dir, "speed"))) * links.Megabyte / 8, // in Mbit/s
		}
		out = append(out, n)
	}
	for _, name := range s.listDir("class", "infiniband") {
		dir := filepath.Join(s.root, "class", "infiniband", name)
		pci := s.pciDevice(filepath.Join(dir, "device"))
		for _, port := range s.listDir("class", "infiniband", name, "ports") {
			at := filepath.Join(dir, "ports", port)
			id, err := strconv.Atoi(port)
			if err != nil {
				continue
			}
			layer := readText(at, "link_layer")
			out = append(out, topology.NIC{
				Name: name, Port: id, PCI: pci, RDMA: layer, Subnet: subnetPrefix(layer, readText(at, "gids", "0")), Up: strings.HasPrefix(readText(at, "state"), "4:"), Rate: parseRate(readText(at, "rate")),
			})
		}
	}
	return out
}

// subnetPrefix returns the prefix of a port's first GID if it distinguishes fabrics: that
// of an InfiniBand subnet without the default prefix.
func subnetPrefix(layer, gid string) string {
	prefix := strings.Join(strings.SplitN(gid, ":", 5)[:min(4, strings.Count(gid, ":"))], ":")
	if layer != "InfiniBand" || strings.Count(gid, ":") != 7 || prefix == "fe80:0000:0000:0000" || prefix == "0000:0000:0000:0000" {
		return ""
	}
	return prefix
}

// parseRate parses a rate such as "400 Gb/sec (4X NDR)".
func parseRate(rate string) links.Rate {
	f := strings.Fields(rate)
	if len(f) < 2 || f[1] != "Gb/sec" {
		return 0
	}
	x, err := strconv.ParseFloat(f[0], 64)
	if err != nil || !(x >= 0 && x < 1e6) {
		return 0
	}
	return links.Rate(x * float64(links.Gigabit))
}

// openDriver reports whether the GPU driver has open kernel modules, which export memory
// as dma-buf.
func (s sysfs) openDriver() bool {
	return strings.Contains(readText(s.proc, "driver", "nvidia", "version"), "Open Kernel Module")
}
