package cuda

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// packedBytes is how much is packed in pinned memory at a time, about.
const packedBytes = 4 << 20

// Gather copies blocks to the host. See transport.Device.
func (m *Memory) Gather(dst []byte, l transport.Layout, blocks []uint32) error {
	return m.packed(dst, l, blocks, packing{
		pass: func(lane *lane, pool, pack cuda.Pointer, blocks []uint32) error {
			return lane.pass(m.gpu.config.Groups, lane.hold.gather, pool, pack, l, l.Packed(len(blocks)), blocks)
		},
		after: func(part, pack []byte) { copy(part, pack) },
	})
}

// Scatter copies blocks from the host. See transport.Device.
func (m *Memory) Scatter(l transport.Layout, blocks []uint32, src []byte) error {
	return m.packed(src, l, blocks, packing{
		before: func(part, pack []byte) { copy(pack, part) },
		pass: func(lane *lane, pool, pack cuda.Pointer, blocks []uint32) error {
			return lane.pass(m.gpu.config.Groups, lane.hold.scatter, pack, pool, l.Packed(len(blocks)), l, blocks)
		},
	})
}

// packing is one direction: a launch, and what the processor copies before or after it
// where packed blocks are not in memory that the GPU reaches.
type packing struct {
	pass          func(lane *lane, pool, pack cuda.Pointer, blocks []uint32) error
	before, after func(part, pack []byte)
}

// packed takes blocks in portions, with the bytes of each.
func (m *Memory) packed(b []byte, l transport.Layout, blocks []uint32, p packing) error {
	size := l.BlockBytes()
	if int64(len(b)) != int64(len(blocks))*size {
		return fmt.Errorf("%d bytes for %d blocks of %d", len(b), len(blocks), size)
	}
	if len(blocks) == 0 {
		return nil
	}
	most := int(max(1, packedBytes/size))
	err := m.work(func(lane *lane, pool cuda.Pointer) error {
		pinned := lane.hold.pinned(b)
		if pinned == 0 {
			if err := lane.hasPack(int64(min(most, len(blocks))) * size); err != nil {
				return err
			}
		}
		for at := 0; at < len(blocks); at += most {
			n := min(most, len(blocks)-at)
			if pinned != 0 {
				if err := p.pass(lane, pool, pinned+cuda.Pointer(int64(at)*size), blocks[at:at+n]); err != nil {
					return err
				}
				continue
			}
			part := b[int64(at)*size:][:int64(n)*size]
			if p.before != nil {
				p.before(part, lane.pack.Bytes())
			}
			if err := p.pass(lane, pool, lane.pack.Pointer(), blocks[at:at+n]); err != nil {
				return err
			}
			if p.after != nil {
				p.after(part, lane.pack.Bytes())
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("a pool on gpu %d: %w", m.gpu.config.Ordinal, err)
	}
	return nil
}

// Pin has the GPU read and write memory of the host by itself: no processor copies what
// Gather and Scatter move to and from b then. It must be a mapping, and stay one until
// unpin, which is called once. A GPU that fails forgets it, and processors copy again.
func (m *Memory) Pin(b []byte) (unpin func(), err error) {
	var in *hold
	var host *cuda.Host
	if err := m.gpu.use(nil, func(h *hold) error {
		made, err := h.context.Register(b)
		if err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		in, host = h, made
		h.pins = append(h.pins, made)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("memory of the host for gpu %d: %w", m.gpu.config.Ordinal, err)
	}
	return func() {
		// In a context that has ended it is unpinned, and so it is at the end of one
		// that cannot do it now.
		_ = m.gpu.use(in, func(h *hold) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.pins = slices.DeleteFunc(h.pins, func(p *cuda.Host) bool { return p == host })
			return host.Close()
		})
	}, nil
}

// pinned is where the GPU has memory of the host, 0 for nowhere.
func (h *hold) pinned(b []byte) cuda.Pointer {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for _, p := range h.pins {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(p.Bytes())))
		if first >= begin && first+uintptr(len(b)) <= begin+uintptr(len(p.Bytes())) {
			return p.Pointer() + cuda.Pointer(first-begin)
		}
	}
	return 0
}

// hasPack makes room for so many packed bytes. The lane is idle.
func (l *lane) hasPack(size int64) error {
	if l.pack != nil && int64(len(l.pack.Bytes())) >= size {
		return nil
	}
	if l.pack != nil {
		if err := l.pack.Close(); err != nil {
			return err
		}
		l.pack = nil
	}
	var err error
	l.pack, err = l.hold.context.HostAlloc(size)
	return err
}

// pass runs a kernel of which one side is packed, and waits for it.
func (l *lane) pass(groups int, k cuda.Kernel, src, dst cuda.Pointer, from, to transport.Layout, blocks []uint32) error {
	c, regions := cutFor(from), len(from.Regions)
	pairs, err := l.begin(c, src, dst, from, to, len(blocks))
	if err != nil {
		return err
	}
	for i, b := range blocks { // the packed side does not look
		pairs[2*i], pairs[2*i+1] = b, b
	}
	if err := l.send(regions, len(blocks)); err != nil {
		return l.drain(err)
	}
	if err := l.launch(k, groups, c, regions, 0, len(blocks)); err != nil {
		return l.drain(err)
	}
	return l.wait()
}
