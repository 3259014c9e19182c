package inventory

import (
	"bytes"
	"cmp"
	"fmt"
	"unsafe"

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

// query calls a function and reports whether it returned a result. A driver that lacks or
// does not support the function returns none; any other code is an error.
func (r *reader) query(c call, v *words, buf unsafe.Pointer) bool {
	return r.recordCode(c, r.l.call(c, v, buf))
}

func (r *reader) recordCode(c call, code int) bool {
	switch code {
	case codeSuccess:
		return true
	case codeNotSupported:
		return false
	}
	if r.lost == "" {
		r.lost = lostReason(code)
	}
	r.errs = append(r.errs, newCallError(c, r.gpu, code))
	return false
}

// number returns the result of a function that has one number, and whether there is one. args begin with the handle
// of the GPU.
func (r *reader) number(c call, args ...uint64) (n int, ok bool) {
	var v words
	copy(v[1:], args)
	ok = r.query(c, &v, nil)
	return int(int32(v[0])), ok
}

// setNumber is number for a result that is stored, if there is one.
func (r *reader) setNumber(to *int, c call, args ...uint64) {
	if n, ok := r.number(c, args...); ok {
		*to = n
	}
}

// setText stores the result of a function that has a text, if there is one. args are what precedes the text.
func (r *reader) setText(to *string, c call, args ...uint64) {
	var v words
	var text [textBytes]byte
	v[copy(v[:], args)] = textBytes
	if r.query(c, &v, unsafe.Pointer(&text)) {
		s, _, _ := bytes.Cut(text[:], []byte{0})
		*to = string(s)
	}
}

// setAddress stores the PCI address that a function returns, if there is one, as the kernel formats it.
func (r *reader) setAddress(to *string, c call, args ...uint64) {
	var v words
	var p pciInfo
	copy(v[:], args)
	if r.query(c, &v, unsafe.Pointer(&p)) {
		*to = fmt.Sprintf("%04x:%02x:%02x.0", p.domain, p.bus, p.device)
	}
}

func (r *reader) readInventory() (in NVMLInventory) {
	r.setText(&in.Driver, nvmlSystemGetDriverVersion)
	handles := r.deviceHandles()
	in.GPUs = r.readGPUs(handles, r.readIdentity, r.readMemory, r.readPCIe, r.readNVLinks, r.readGPUHealth)
	for a, da := range handles {
		for b, db := range handles {
			if a != b && da != 0 && db != 0 && in.GPUs[a].Health.Lost == "" && in.GPUs[b].Health.Lost == "" {
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
func (r *reader) readGPUs(handles []uint64, parts ...func(uint64, *topology.GPU)) (out []topology.GPU) {
	for i, d := range handles {
		g := topology.GPU{Index: i, PCI: topology.PCI{NUMA: topology.Unknown}}
		r.gpu, r.lost = i, ""
		if d == 0 {
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

// deviceHandles returns the handles of the GPUs by index, 0 for those without one.
func (r *reader) deviceHandles() (out []uint64) {
	n := 0
	r.gpu = topology.Unknown
	r.setNumber(&n, nvmlDeviceGetCount)
	for i := range n {
		r.gpu = i
		v := words{1: uint64(i)}
		if !r.query(nvmlDeviceGetHandleByIndex, &v, nil) {
			v[0] = 0
		}
		out = append(out, v[0])
	}
	r.gpu = topology.Unknown
	return out
}

func (r *reader) readIdentity(d uint64, g *topology.GPU) {
	r.setText(&g.UUID, nvmlDeviceGetUUID, d)
	r.setText(&g.Name, nvmlDeviceGetName, d)
	r.setAddress(&g.PCI.Address, nvmlDeviceGetPciInfo, d)
	if mode := (words{2: d}); r.query(nvmlDeviceGetMigMode, &mode, nil) {
		g.MIG = mode[0] != 0
	}
}

func (r *reader) readMemory(d uint64, g *topology.GPU) {
	if m := (words{3: d}); r.query(nvmlDeviceGetMemoryInfo, &m, nil) {
		g.Memory = topology.Memory{Total: policies.Bytes(m[0]), Free: policies.Bytes(m[1])}
	}
	bits, wide := r.number(nvmlDeviceGetMemoryBusWidth, d)
	clock, fast := r.number(nvmlDeviceGetMaxClockInfo, d, clockMemory)
	if wide && fast {
		// Two transfers per clock; a copy reads each byte and writes it.
		g.Copy = links.Rate(clock) * links.Megabyte * 2 * links.Rate(bits) / 8 / 2
	}
}

func (r *reader) readPCIe(d uint64, g *topology.GPU) {
	l := &g.PCI.Link
	r.setNumber(&g.PCI.NUMA, nvmlDeviceGetNumaNodeID, d)
	r.setNumber(&l.Gen, nvmlDeviceGetCurrPcieLinkGeneration, d)
	r.setNumber(&l.MaxGen, nvmlDeviceGetMaxPcieLinkGeneration, d)
	r.setNumber(&l.Width, nvmlDeviceGetCurrPcieLinkWidth, d)
	r.setNumber(&l.MaxWidth, nvmlDeviceGetMaxPcieLinkWidth, d)
}

// readNVLinks reads NVLinks until the driver reports that there are no more.
func (r *reader) readNVLinks(d uint64, g *topology.GPU) {
	for i := range uint64(maxNVLinks) {
		state := words{1: d, 2: i}
		code := r.l.call(nvmlDeviceGetNvLinkState, &state, nil)
		if code == codeInvalidArgument || !r.recordCode(nvmlDeviceGetNvLinkState, code) {
			return
		}
		link := topology.NVLink{Link: int(i), Active: state[0] != 0}
		if version, ok := r.number(nvmlDeviceGetNvLinkVersion, d, i); ok {
			link.Version = generations[version]
		}
		if link.Active {
			kind, ok := r.number(nvmlDeviceGetNvLinkRemoteDeviceType, d, i)
			link.Switch = ok && kind == remoteSwitch
			r.setAddress(&link.Remote, nvmlDeviceGetNvLinkRemotePciInfo, d, i)
		}
		g.NVLinks = append(g.NVLinks, link)
	}
}

// generations maps nvmlNvlinkVersion_t to the major versions of NVLink.
var generations = map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}

// throttles are the reasons for low clocks that cost performance, by their bits.
var throttles = [...]struct {
	bit  uint64
	text string
}{
	{0x04, "power cap"}, {0x08, "hardware slowdown"}, {0x20, "heat"}, {0x40, "heat (hardware)"}, {0x80, "power brake"},
}

func (r *reader) readGPUHealth(d uint64, g *topology.GPU) {
	h := &g.Health
	if errors := (words{1: d, 2: errorUncorrected, 3: counterVolatile}); r.query(nvmlDeviceGetTotalEccErrors, &errors, nil) {
		h.ECC = errors[0]
	}
	if rows := (words{4: d}); r.query(nvmlDeviceGetRemappedRows, &rows, nil) {
		h.Remap, h.RemapFailed = rows[2] != 0, rows[3] != 0
	}
	if reasons := (words{1: d}); r.query(nvmlDeviceGetCurrentClocksEventReasons, &reasons, nil) {
		for _, t := range throttles {
			if reasons[0]&t.bit != 0 {
				h.Throttled = append(h.Throttled, t.text)
			}
		}
	}
}

// readPeer reads what a may access of b. It reports false if the driver does not know.
func (r *reader) readPeer(a, b uint64) (p topology.Peer, known bool) {
	level := -1
	r.setNumber(&level, nvmlDeviceGetTopologyCommonAncestor, a, b)
	p.Distance = cmp.Or(distances[level], links.UnknownDistance)
	for _, f := range [...]struct {
		what uint64
		to   *bool
	}{{p2pRead, &p.Read}, {p2pWrite, &p.Write}, {p2pNVLink, &p.NVLink}} {
		if status, ok := r.number(nvmlDeviceGetP2PStatus, a, b, f.what); ok {
			*f.to, known = status == p2pOK, true
		}
	}
	return p, known
}

// distances maps nvmlGpuTopologyLevel_t, levels of the tree of bridges, to distances.
var distances = map[int]links.Distance{
	0: links.SameDevice, 10: links.Switch, 20: links.Switches, 30: links.RootComplex, 40: links.NUMANode, 50: links.System,
}
