//go:build cgo && linux

package inventory

import (
	"cmp"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// reader is one Read in progress. It collects errors.
type reader struct {
	l    *NVMLLibrary
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

// get is query for a call whose result it stores, if it returned one.
func get[T any](r *reader, call string, to *T, f func() (T, nvml.Return)) bool {
	return r.query(call, func() nvml.Return {
		v, ret := f()
		if ret == nvml.SUCCESS {
			*to = v
		}
		return ret
	})
}

func (r *reader) readInventory() (in NVMLInventory) {
	get(r, "nvmlSystemGetDriverVersion", &in.Driver, r.l.api.SystemGetDriverVersion)
	handles := r.deviceHandles()
	in.GPUs = r.readGPUs(handles, r.readIdentity, r.readMemory, r.readPCIe, r.readNVLinks, r.readGPUHealth)
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

// readGPUs reads parts of each GPU until it is lost.
func (r *reader) readGPUs(handles []nvml.Device, parts ...func(nvml.Device, *topology.GPU)) (out []topology.GPU) {
	for i, d := range handles {
		g := topology.GPU{Index: i, PCI: topology.PCI{NUMA: topology.Unknown}}
		r.gpu, r.lost = i, ""
		if d == nil {
			r.lost = "the driver does not list it"
		}
		for _, part := range parts {
			if r.lost == "" {
				part(d, &g)
			}
		}
		g.Health.Lost = r.lost
		out = append(out, g)
	}
	return out
}

// deviceHandles returns the handles of the GPUs by index, nil for those without one.
func (r *reader) deviceHandles() (out []nvml.Device) {
	n := 0
	r.gpu = topology.Unknown
	get(r, "nvmlDeviceGetCount_v2", &n, r.l.api.DeviceGetCount)
	for i := range n {
		var d nvml.Device
		r.gpu = i
		get(r, "nvmlDeviceGetHandleByIndex_v2", &d, func() (nvml.Device, nvml.Return) { return r.l.api.DeviceGetHandleByIndex(i) })
		out = append(out, d)
	}
	r.gpu = topology.Unknown
	return out
}

func (r *reader) readIdentity(d nvml.Device, g *topology.GPU) {
	get(r, "nvmlDeviceGetUUID", &g.UUID, d.GetUUID)
	get(r, "nvmlDeviceGetName", &g.Name, d.GetName)
	var pci nvml.PciInfo
	if get(r, "nvmlDeviceGetPciInfo_v3", &pci, d.GetPciInfo) {
		g.PCI.Address = nvmlAddress(pci)
	}
	mode := 0
	if r.query("nvmlDeviceGetMigMode", func() (ret nvml.Return) { mode, _, ret = d.GetMigMode(); return ret }) {
		g.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
}

// nvmlAddress formats a PCI address like the kernel.
func nvmlAddress(p nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

func (r *reader) readMemory(d nvml.Device, g *topology.GPU) {
	var m nvml.Memory
	if get(r, "nvmlDeviceGetMemoryInfo", &m, d.GetMemoryInfo) {
		g.Memory = topology.Memory{Total: policies.Bytes(m.Total), Free: policies.Bytes(m.Free)}
	}
	var bits, clock uint32
	wide := get(r, "nvmlDeviceGetMemoryBusWidth", &bits, d.GetMemoryBusWidth)
	fast := get(r, "nvmlDeviceGetMaxClockInfo", &clock, func() (uint32, nvml.Return) { return d.GetMaxClockInfo(nvml.CLOCK_MEM) })
	if wide && fast {
		// Two transfers per clock; a copy reads each byte and writes it.
		g.Copy = links.Rate(clock) * links.Megabyte * 2 * links.Rate(bits) / 8 / 2
	}
}

func (r *reader) readPCIe(d nvml.Device, g *topology.GPU) {
	l := &g.PCI.Link
	get(r, "nvmlDeviceGetNumaNodeId", &g.PCI.NUMA, d.GetNumaNodeId)
	get(r, "nvmlDeviceGetCurrPcieLinkGeneration", &l.Gen, d.GetCurrPcieLinkGeneration)
	get(r, "nvmlDeviceGetMaxPcieLinkGeneration", &l.MaxGen, d.GetMaxPcieLinkGeneration)
	get(r, "nvmlDeviceGetCurrPcieLinkWidth", &l.Width, d.GetCurrPcieLinkWidth)
	get(r, "nvmlDeviceGetMaxPcieLinkWidth", &l.MaxWidth, d.GetMaxPcieLinkWidth)
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
		if get(r, "nvmlDeviceGetNvLinkVersion", &version, func() (uint32, nvml.Return) { return d.GetNvLinkVersion(i) }) {
			link.Version = generations[nvml.NvlinkVersion(version)]
		}
		if link.Active {
			var kind nvml.IntNvLinkDeviceType
			if get(r, "nvmlDeviceGetNvLinkRemoteDeviceType", &kind, func() (nvml.IntNvLinkDeviceType, nvml.Return) { return d.GetNvLinkRemoteDeviceType(i) }) {
				link.Switch = kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
			}
			var pci nvml.PciInfo
			if get(r, "nvmlDeviceGetNvLinkRemotePciInfo_v2", &pci, func() (nvml.PciInfo, nvml.Return) { return d.GetNvLinkRemotePciInfo(i) }) {
				link.Remote = nvmlAddress(pci)
			}
		}
		g.NVLinks = append(g.NVLinks, link)
	}
}

// generations maps the versions of NVLink to their major versions.
var generations = map[nvml.NvlinkVersion]int{
	nvml.NVLINK_VERSION_1_0: 1, nvml.NVLINK_VERSION_2_0: 2, nvml.NVLINK_VERSION_2_2: 2, nvml.NVLINK_VERSION_3_0: 3, nvml.NVLINK_VERSION_3_1: 3,
	nvml.NVLINK_VERSION_4_0: 4, nvml.NVLINK_VERSION_5_0: 5, nvml.NVLINK_VERSION_6_0: 6,
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
	get(r, "nvmlDeviceGetTotalEccErrors", &h.ECC, func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	})
	r.query("nvmlDeviceGetRemappedRows", func() (ret nvml.Return) { _, _, h.Remap, h.RemapFailed, ret = d.GetRemappedRows(); return ret })
	var reasons uint64
	if get(r, "nvmlDeviceGetCurrentClocksEventReasons", &reasons, d.GetCurrentClocksEventReasons) {
		for _, t := range throttles {
			if reasons&t.bit != 0 {
				h.Throttled = append(h.Throttled, t.text)
			}
		}
	}
}

// readPeer reads what a may access of b. It reports false if the driver does not know.
func (r *reader) readPeer(a, b nvml.Device) (p topology.Peer, known bool) {
	level := nvml.GpuTopologyLevel(-1)
	get(r, "nvmlDeviceGetTopologyCommonAncestor", &level, func() (nvml.GpuTopologyLevel, nvml.Return) { return a.GetTopologyCommonAncestor(b) })
	p.Distance = cmp.Or(distances[level], links.UnknownDistance)
	for _, f := range [...]struct {
		what nvml.GpuP2PCapsIndex
		to   *bool
	}{{nvml.P2P_CAPS_INDEX_READ, &p.Read}, {nvml.P2P_CAPS_INDEX_WRITE, &p.Write}, {nvml.P2P_CAPS_INDEX_NVLINK, &p.NVLink}} {
		var status nvml.GpuP2PStatus
		if get(r, "nvmlDeviceGetP2PStatus", &status, func() (nvml.GpuP2PStatus, nvml.Return) { return a.GetP2PStatus(b, f.what) }) {
			*f.to, known = status == nvml.P2P_STATUS_OK, true
		}
	}
	return p, known
}

// distances maps the driver's levels of the tree of bridges to distances.
var distances = map[nvml.GpuTopologyLevel]links.Distance{
	nvml.TOPOLOGY_INTERNAL: links.SameDevice, nvml.TOPOLOGY_SINGLE: links.Switch, nvml.TOPOLOGY_MULTIPLE: links.Switches,
	nvml.TOPOLOGY_HOSTBRIDGE: links.RootComplex, nvml.TOPOLOGY_NODE: links.NUMANode, nvml.TOPOLOGY_SYSTEM: links.System,
}
