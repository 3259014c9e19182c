package cuda

import (
	"errors"
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
	return m.copyPacked(dst, l, blocks, packedCopy{
		launch: func(lane *copyStream, pool, pack cuda.Pointer, blocks []uint32) error {
			return lane.runPackedKernel(m.gpu.config.Groups, lane.context.gather, pool, pack, l, l.Packed(len(blocks)), blocks)
		},
		after: func(part, pack []byte) { copy(part, pack) },
	})
}

// Scatter copies blocks from the host. See transport.Device.
func (m *Memory) Scatter(l transport.Layout, blocks []uint32, src []byte) error {
	return m.copyPacked(src, l, blocks, packedCopy{
		before: func(part, pack []byte) { copy(pack, part) },
		launch: func(lane *copyStream, pool, pack cuda.Pointer, blocks []uint32) error {
			return lane.runPackedKernel(m.gpu.config.Groups, lane.context.scatter, pack, pool, l.Packed(len(blocks)), l, blocks)
		},
	})
}

// packedCopy is one direction: a launch, and what the processor copies before or after it
// where packed blocks are not in memory that the GPU reaches.
type packedCopy struct {
	launch        func(lane *copyStream, pool, pack cuda.Pointer, blocks []uint32) error
	before, after func(part, pack []byte)
}

// copyPacked takes blocks in portions, with the bytes of each.
func (m *Memory) copyPacked(b []byte, l transport.Layout, blocks []uint32, p packedCopy) error {
	size := l.BlockBytes()
	if int64(len(b)) != int64(len(blocks))*size {
		return fmt.Errorf("%d bytes for %d blocks of %d", len(b), len(blocks), size)
	}
	if len(blocks) == 0 {
		return nil
	}
	most := int(max(1, packedBytes/size))
	err := m.withStream(func(lane *copyStream, pool cuda.Pointer) error {
		pinned := m.gpu.pinnedPointer(lane.context, b)
		if pinned == 0 {
			if err := lane.reservePacked(int64(min(most, len(blocks))) * size); err != nil {
				return err
			}
		}
		for at := 0; at < len(blocks); at += most {
			n := min(most, len(blocks)-at)
			if pinned != 0 {
				if err := p.launch(lane, pool, pinned+cuda.Pointer(int64(at)*size), blocks[at:at+n]); err != nil {
					return err
				}
				continue
			}
			part := b[int64(at)*size:][:int64(n)*size]
			if p.before != nil {
				p.before(part, lane.packed.Bytes())
			}
			if err := p.launch(lane, pool, lane.packed.Pointer(), blocks[at:at+n]); err != nil {
				return err
			}
			if p.after != nil {
				p.after(part, lane.packed.Bytes())
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
// unpin has returned nil, which is called until it does. A GPU that was opened anew gets
// to know it again when it is used.
func (m *Memory) Pin(b []byte) (unpin func() error, err error) {
	g := m.gpu
	p := &hostPin{memory: b}
	g.pinsMu.Lock()
	g.pins = append(g.pins, p)
	g.pinsMu.Unlock()
	forget := func() error {
		g.mu.Lock()
		h := g.current
		g.mu.Unlock()
		if h != nil {
			if err := g.withContext(h, func(h *gpuContext) error { return h.unregisterPin(p) }); err != nil && !errors.Is(err, errContextClosed) && !cuda.Sticky(err) {
				return fmt.Errorf("memory of the host stays pinned for gpu %d: %w", g.config.Ordinal, err)
			}
		}
		g.pinsMu.Lock()
		defer g.pinsMu.Unlock()
		g.pins = slices.DeleteFunc(g.pins, func(o *hostPin) bool { return o == p })
		return nil
	}
	if err := g.withContext(nil, func(h *gpuContext) error {
		_, err := h.registerPin(p)
		return err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("memory of the host for gpu %d: %w", g.config.Ordinal, err), forget())
	}
	return forget, nil
}

// hostPin is memory of the host that a GPU is told of.
type hostPin struct{ memory []byte }

// registerPin makes a context know a pin.
func (h *gpuContext) registerPin(p *hostPin) (*cuda.HostMemory, error) {
	h.pinMu.Lock()
	defer h.pinMu.Unlock()
	if host := h.pins[p]; host != nil {
		return host, nil
	}
	host, err := h.context.RegisterHost(p.memory)
	if err == nil {
		h.pins[p] = host
	}
	return host, err
}

// unregisterPin has it forget one. One that cannot be forgotten is known still.
func (h *gpuContext) unregisterPin(p *hostPin) error {
	h.pinMu.Lock()
	defer h.pinMu.Unlock()
	host := h.pins[p]
	if host == nil {
		return nil
	}
	err := host.Close()
	if err == nil {
		delete(h.pins, p)
	}
	return err
}

// pinnedPointer is where the GPU has memory of the host, 0 for nowhere.
func (g *GPU) pinnedPointer(h *gpuContext, b []byte) cuda.Pointer {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	g.pinsMu.Lock()
	i := slices.IndexFunc(g.pins, func(p *hostPin) bool {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(p.memory)))
		return first >= begin && first+uintptr(len(b)) <= begin+uintptr(len(p.memory))
	})
	var p *hostPin
	if i >= 0 {
		p = g.pins[i]
	}
	g.pinsMu.Unlock()
	if p == nil {
		return 0
	}
	host, err := h.registerPin(p)
	if err != nil {
		return 0 // a processor copies
	}
	return host.Pointer() + cuda.Pointer(first-uintptr(unsafe.Pointer(unsafe.SliceData(p.memory))))
}

// reservePacked makes room for so many packed bytes. The lane is idle.
func (l *copyStream) reservePacked(size int64) error {
	if l.packed != nil && int64(len(l.packed.Bytes())) >= size {
		return nil
	}
	if l.packed != nil {
		if err := l.packed.Close(); err != nil {
			return err
		}
		l.packed = nil
	}
	var err error
	l.packed, err = l.context.context.AllocHost(size)
	return err
}

// runPackedKernel runs a kernel of which one side is packed, and waits for it.
func (l *copyStream) runPackedKernel(groups int, k cuda.Kernel, src, dst cuda.Pointer, from, to transport.Layout, blocks []uint32) error {
	c, regions := tilingFor(from), len(from.Regions)
	pairs, err := l.describe(c, src, dst, from, to, len(blocks))
	if err != nil {
		return err
	}
	for i, b := range blocks { // the packed side does not look
		pairs[2*i], pairs[2*i+1] = b, b
	}
	if err := l.uploadDescription(regions, len(blocks)); err != nil {
		return l.drainAfter(err)
	}
	if err := l.launchKernel(k, groups, c, regions, 0, len(blocks)); err != nil {
		return l.drainAfter(err)
	}
	return l.waitDone()
}
