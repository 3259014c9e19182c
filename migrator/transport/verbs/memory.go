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
	// DMABuf exports the pool: it returns a descriptor, which the caller closes, and the
	// offset of the pool in it. The error says why there is none.
	DMABuf() (f *os.File, offset int64, err error)
}

// access of every registration: a pool is source and target.
const access = verbs.LocalWrite | verbs.RemoteRead

// register registers a pool.
func register(d *verbs.Device, m *transport.Memory) (*verbs.MemoryRegion, error) {
	if m.Device == nil {
		return d.Register(uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes))), uint64(len(m.Bytes)), access)
	}
	x, ok := m.Device.(Exporter)
	if !ok {
		return nil, errors.New("the engine's pool is on a device that exports no memory")
	}
	f, offset, err := x.DMABuf()
	if err != nil {
		return nil, fmt.Errorf("the engine's pool is on a device: %w", err)
	}
	defer f.Close() // the registration keeps the memory
	// Requests address the bytes from the offset within a page on, since a NIC maps
	// pages.
	base := uint64(offset) % uint64(os.Getpagesize())
	return d.RegisterDMABuf(int(f.Fd()), uint64(offset), uint64(m.MinSize()), base, access)
}

// appendCorrupt appends the entries of a plan whose parts [from, to) do not have their
// checksums, of the source's kind. Parts are numbered region by region.
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

// packBytes is the number of bytes of a device's memory gathered at a time, about.
const packBytes = 4 << 20

// checksumOnHost computes checksums that a device cannot compute: those of a pool that
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

// appendCorruptDevice is appendCorrupt for a whole plan in the memory of a device.
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
		return bad, fmt.Errorf("the device returned %d checksums, want %d", len(sums), len(plan.Sums))
	}
	for i, s := range sums {
		if s != plan.Sums[i] {
			bad = append(bad, i/len(m.Regions))
		}
	}
	return bad, nil
}
