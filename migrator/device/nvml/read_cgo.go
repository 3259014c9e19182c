//go:build cgo && linux

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// reader is one Read in progress. It collects errors.
type reader struct {
	l    *Library
	gpu  int    // index of the queried GPU; topology.Unknown for none
	lost string // why the queried GPU is lost
	errs []error
}

// query makes a call and reports whether it returned a result. A driver that lacks or
// does not support the call returns none; any other code is an error.
func (r *reader) query(call string, f func() nvml.Return) bool {
	return r.recordCode(call, r.call(call, f))
}

// call makes a call and returns its code.
func (r *reader) call(call string, f func() nvml.Return) int {
	if r.l.missing[call] {
		return codeNotSupported
	}
	return int(f())
}

func (r *reader) recordCode(call string, code int) bool {
	switch code {
	case int(nvml.SUCCESS):
		return true
	case codeNotSupported:
		return false
	}
	if r.lost == "" {
		r.lost = lostReason(code)
	}
	r.errs = append(r.errs, &CallError{Call: call, GPU: r.gpu, Code: code})
	return false
}

func (r *reader) readInventory() (in Inventory) {
	r.query("nvmlSystemGetDriverVersion", func() (ret nvml.Return) { in.Driver, ret = r.l.api.SystemGetDriverVersion(); return ret })
	handles := r.deviceHandles()
	for i, d := range handles {
		g := topology.GPU{Index: i, PCI: topology.PCI{NUMA: topology.Unknown}}
		if d == nil {
			g.Health.Lost = "the driver does not list it"
		} else {
			r.gpu, r.lost = i, ""
			r.readGPU(d, &g)
			g.Health.Lost = r.lost
		}
		in.GPUs = append(in.GPUs, g)
	}
	for a, da := range handles {
		for b, db := range handles {
			if a != b && da != nil && db != nil && in.GPUs[a].Health.Lost == "" && in.GPUs[b].Health.Lost == "" {
				r.gpu = a
				if p, known := r.readPeer(da, db); known {
					p.From, p.To = a, b
					in.Peers = append(in.Peers, p)
				}
			}
		}
	}
	return in
}

// readHealths is readInventory without what does not change.
func (r *reader) readHealths() (out []topology.GPU) {
	for i, d := range r.deviceHandles() {
		g := topology.GPU{Index: i, PCI: topology.PCI{NUMA: topology.Unknown}}
		if d == nil {
			g.Health.Lost = "the driver does not list it"
		} else {
			r.gpu, r.lost = i, ""
			r.readIdentity(d, &g)
			if r.lost == "" {
				r.readGPUHealth(d, &g)
			}
			g.Health.Lost = r.lost
		}
		out = append(out, g)
	}
	return out
}

// deviceHandles returns the handles of the GPUs by index, nil for those without one.
func (r *reader) deviceHandles() (out []nvml.Device) {
	n := 0
	r.gpu = topology.Unknown
	r.query("nvmlDeviceGetCount_v2", func() (ret nvml.Return) { n, ret = r.l.api.DeviceGetCount(); return ret })
	for i := range n {
		var d nvml.Device
		r.gpu = i
		if !r.query("nvmlDeviceGetHandleByIndex_v2", func() (ret nvml.Return) { d, ret = r.l.api.DeviceGetHandleByIndex(i); return ret }) {
			d = nil
		}
		out = append(out, d)
	}
	r.gpu = topology.Unknown
	return out
}

// readGPU reads a GPU until it is lost.
func (r *reader) readGPU(d nvml.Device, g *topology.GPU) {
	for _, part := range [...]func(nvml.Device, *topology.GPU){r.readIdentity, r.readMemory, r.readPCIe, r.readNVLinks, r.readGPUHealth} {
		if r.lost == "" {
			part(d, g)
		}
	}
}

func (r *reader) readIdentity(d nvml.Device, g *topology.GPU) {
	r.query("nvmlDeviceGetUUID", func() (ret nvml.Return) { g.UUID, ret = d.GetUUID(); return ret })
	r.query("nvmlDeviceGetName", func() (ret nvml.Return) { g.Name, ret = d.GetName(); return ret })
	var pci nvml.PciInfo
	if r.query("nvmlDeviceGetPciInfo_v3", func() (ret nvml.Return) { pci, ret = d.GetPciInfo(); return ret }) {
		g.PCI.Address = pciAddress(pci)
	}
	mode := 0
	if r.query("nvmlDeviceGetMigMode", func() (ret nvml.Return) { mode, _, ret = d.GetMigMode(); return ret }) {
		g.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
}

// pciAddress formats a PCI address like the kernel.
func pciAddress(p nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

func (r *reader) readMemory(d nvml.Device, g *topology.GPU) {
	var m nvml.Memory
	if r.query("nvmlDeviceGetMemoryInfo", func() (ret nvml.Return) { m, ret = d.GetMemoryInfo(); return ret }) {
		g.Memory = topology.Memory{Total: policies.Bytes(m.Total), Free: policies.Bytes(m.Free)}
	}
	var bits, clock uint32
	wide := r.query("nvmlDeviceGetMemoryBusWidth", func() (ret nvml.Return) { bits, ret = d.GetMemoryBusWidth(); return ret })
	fast := r.query("nvmlDeviceGetMaxClockInfo", func() (ret nvml.Return) { clock, ret = d.GetMaxClockInfo(nvml.CLOCK_MEM); return ret })
	if wide && fast {
		// Two transfers per clock; a copy reads each byte and writes it.
		g.Copy = links.Rate(clock) * links.Megabyte * 2 * links.Rate(bits) / 8 / 2
	}
}

func (r *reader) readPCIe(d nvml.Device, g *topology.GPU) {
	node := 0
	if r.query("nvmlDeviceGetNumaNodeId", func() (ret nvml.Return) { node, ret = d.GetNumaNodeId(); return ret }) {
		g.PCI.NUMA = node
	}
	l := &g.PCI.Link
	for _, f := range [...]struct {
		call string
		get  func() (int, nvml.Return)
		to   *int
	}{
		{"nvmlDeviceGetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration, &l.Gen},
		{"nvmlDeviceGetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration, &l.MaxGen},
		{"nvmlDeviceGetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth, &l.Width},
		{"nvmlDeviceGetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth, &l.MaxWidth},
	} {
		v := 0
		if r.query(f.call, func() (ret nvml.Return) { v, ret = f.get(); return ret }) {
			*f.to = v
		}
	}
}

// readNVLinks reads NVLinks until the driver reports that there are no more.
func (r *reader) readNVLinks(d nvml.Device, g *topology.GPU) {
	for i := range nvml.NVLINK_MAX_LINKS {
		var state nvml.EnableState
		code := r.call("nvmlDeviceGetNvLinkState", func() (ret nvml.Return) { state, ret = d.GetNvLinkState(i); return ret })
		if code == codeInvalidArgument || !r.recordCode("nvmlDeviceGetNvLinkState", code) {
			return
		}
		link := topology.NVLink{Link: i, Active: state == nvml.FEATURE_ENABLED}
		var version uint32
		if r.query("nvmlDeviceGetNvLinkVersion", func() (ret nvml.Return) { version, ret = d.GetNvLinkVersion(i); return ret }) {
			link.Version = generation(nvml.NvlinkVersion(version))
		}
		if link.Active {
			var kind nvml.IntNvLinkDeviceType
			if r.query("nvmlDeviceGetNvLinkRemoteDeviceType", func() (ret nvml.Return) { kind, ret = d.GetNvLinkRemoteDeviceType(i); return ret }) {
				link.Switch = kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
			}
			var pci nvml.PciInfo
			if r.query("nvmlDeviceGetNvLinkRemotePciInfo_v2", func() (ret nvml.Return) { pci, ret = d.GetNvLinkRemotePciInfo(i); return ret }) {
				link.Remote = pciAddress(pci)
			}
		}
		g.NVLinks = append(g.NVLinks, link)
	}
}

// generation returns the major version of NVLink.
func generation(v nvml.NvlinkVersion) int {
	switch v {
	case nvml.NVLINK_VERSION_1_0:
		return 1
	case nvml.NVLINK_VERSION_2_0, nvml.NVLINK_VERSION_2_2:
		return 2
	case nvml.NVLINK_VERSION_3_0, nvml.NVLINK_VERSION_3_1:
		return 3
	case nvml.NVLINK_VERSION_4_0:
		return 4
	case nvml.NVLINK_VERSION_5_0:
		return 5
	case nvml.NVLINK_VERSION_6_0:
		return 6
	}
	return 0
}

// throttles are the reasons for low clocks that cost performance, by their bits.
var throttles = [...]struct {
	bit  uint64
	text string
}{
	{nvml.ClocksEventReasonSwPowerCap, "power cap"},
	{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
	{nvml.ClocksEventReasonSwThermalSlowdown, "heat"},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, "heat (hardware)"},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"},
}

func (r *reader) readGPUHealth(d nvml.Device, g *topology.GPU) {
	h := &g.Health
	r.query("nvmlDeviceGetTotalEccErrors", func() (ret nvml.Return) {
		h.ECC, ret = d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		return ret
	})
	r.query("nvmlDeviceGetRemappedRows", func() (ret nvml.Return) { _, _, h.Remap, h.RemapFailed, ret = d.GetRemappedRows(); return ret })
	var reasons uint64
	if r.query("nvmlDeviceGetCurrentClocksEventReasons", func() (ret nvml.Return) { reasons, ret = d.GetCurrentClocksEventReasons(); return ret }) {
		for _, t := range throttles {
			if reasons&t.bit != 0 {
				h.Throttled = append(h.Throttled, t.text)
			}
		}
	}
}

// readPeer reads what a may access of b. It reports false if the driver does not know.
func (r *reader) readPeer(a, b nvml.Device) (p topology.Peer, known bool) {
	p.Distance = links.UnknownDistance
	var level nvml.GpuTopologyLevel
	if r.query("nvmlDeviceGetTopologyCommonAncestor", func() (ret nvml.Return) { level, ret = a.GetTopologyCommonAncestor(b); return ret }) {
		p.Distance = distance(level)
	}
	for _, f := range [...]struct {
		what nvml.GpuP2PCapsIndex
		to   *bool
	}{{nvml.P2P_CAPS_INDEX_READ, &p.Read}, {nvml.P2P_CAPS_INDEX_WRITE, &p.Write}, {nvml.P2P_CAPS_INDEX_NVLINK, &p.NVLink}} {
		var status nvml.GpuP2PStatus
		if r.query("nvmlDeviceGetP2PStatus", func() (ret nvml.Return) { status, ret = a.GetP2PStatus(b, f.what); return ret }) {
			*f.to, known = status == nvml.P2P_STATUS_OK, true
		}
	}
	return p, known
}

func distance(l nvml.GpuTopologyLevel) links.Distance {
	switch l {
	case nvml.TOPOLOGY_INTERNAL:
		return links.SameDevice
	case nvml.TOPOLOGY_SINGLE:
		return links.Switch
	case nvml.TOPOLOGY_MULTIPLE:
		return links.Switches
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return links.RootComplex
	case nvml.TOPOLOGY_NODE:
		return links.NUMANode
	case nvml.TOPOLOGY_SYSTEM:
		return links.System
	}
	return links.UnknownDistance
}
