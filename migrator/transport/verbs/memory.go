package verbs

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Exporter is a transport.Device whose memory other devices can reach.
type Exporter interface {
	transport.Device
	// DMABuf describes the pool: a descriptor, which the caller closes, and where in
	// it the pool begins. The error says why there is none.
	DMABuf() (f *os.File, offset int64, err error)
}

// access of every registration: a pool is a source and a target.
const access = verbs.LocalWrite | verbs.RemoteRead

// register registers a pool.
func register(d *verbs.Device, m *transport.Memory) (*verbs.MemoryRegion, error) {
	if m.Device == nil {
		return d.Register(uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes))), uint64(len(m.Bytes)), access)
	}
	x, ok := m.Device.(Exporter)
	if !ok {
		return nil, errors.New("the engine's pool is on a device that offers its memory to no other")
	}
	f, offset, err := x.DMABuf()
	if err != nil {
		return nil, fmt.Errorf("the engine's pool is on a device: %w", err)
	}
	defer f.Close() // the registration keeps it
	// Requests name the bytes from where offset is in its page: a NIC has its tables by
	// the page.
	base := uint64(offset) % uint64(os.Getpagesize())
	return d.RegisterDMABuf(int(f.Fd()), uint64(offset), uint64(m.MinSize()), base, access)
}

// appendCorrupt appends the entries of a plan whose parts [from, to) do not have their
// sums, of the source's kind, parts being numbered region by region.
func appendCorrupt(m *transport.Memory, kind transport.Checksum, plan transport.Plan, from, to int, bad []int) []int {
	regions := len(m.Regions)
	for ; from < to; from++ {
		entry, r := from%len(plan.Dst), from/len(plan.Dst)
		if kind.Of(m.RegionBytes(plan.Dst[entry], r)) != plan.Sums[entry*regions+r] {
			bad = append(bad, entry)
		}
	}
	return bad
}

// packBytes is how much of a device's memory is looked at at a time, about.
const packBytes = 4 << 20

// checksumOnHost are sums of a kind that a device does not compute: of a pool that
// processors write.
func checksumOnHost(m *transport.Memory, kind transport.Checksum, blocks []uint32) ([]uint32, error) {
	size := m.BlockBytes()
	most := int(max(1, packBytes/size))
	pack := make([]byte, int64(min(most, len(blocks)))*size)
	var sums []uint32
	for len(blocks) > 0 {
		n := min(most, len(blocks))
		part := pack[:int64(n)*size]
		if err := m.Device.Gather(part, m.Layout, blocks[:n]); err != nil {
			return nil, err
		}
		for len(part) > 0 {
			for _, g := range m.Regions {
				sums, part = append(sums, kind.Of(part[:g.Bytes])), part[g.Bytes:]
			}
		}
		blocks = blocks[n:]
	}
	return sums, nil
}

// appendCorruptDevice is verify for a whole plan in memory that this process does not see.
func appendCorruptDevice(m *transport.Memory, kind transport.Checksum, plan transport.Plan, bad []int) ([]int, error) {
	var sums []uint32
	var err error
	if kind == m.Checksum {
		sums, err = m.Device.Sums(nil, m.Layout, plan.Dst)
	} else {
		sums, err = checksumOnHost(m, kind, plan.Dst)
	}
	if err != nil {
		return bad, err
	}
	if len(sums) != len(plan.Sums) {
		return bad, fmt.Errorf("the device has %d sums of %d", len(sums), len(plan.Sums))
	}
	for i, s := range sums {
		if s != plan.Sums[i] {
			bad = append(bad, i/len(m.Regions))
		}
	}
	return bad, nil
}
