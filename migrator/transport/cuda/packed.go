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
		pinned := m.gpu.pinned(lane.hold, b)
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
// unpin has returned nil, which is called until it does. A GPU that was opened anew gets
// to know it again when it is used.
func (m *Memory) Pin(b []byte) (unpin func() error, err error) {
	g := m.gpu
	p := &pin{memory: b}
	g.noting.Lock()
	g.pins = append(g.pins, p)
	g.noting.Unlock()
	forget := func() error {
		g.mu.Lock()
		h := g.held
		g.mu.Unlock()
		if h != nil {
			if err := g.use(h, func(h *hold) error { return h.unregister(p) }); err != nil && !errors.Is(err, errOver) && !cuda.Sticky(err) {
				return fmt.Errorf("memory of the host stays pinned for gpu %d: %w", g.config.Ordinal, err)
			}
		}
		g.noting.Lock()
		defer g.noting.Unlock()
		g.pins = slices.DeleteFunc(g.pins, func(o *pin) bool { return o == p })
		return nil
	}
	if err := g.use(nil, func(h *hold) error {
		_, err := h.register(p)
		return err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("memory of the host for gpu %d: %w", g.config.Ordinal, err), forget())
	}
	return forget, nil
}

// pin is memory of the host that a GPU is told of.
type pin struct{ memory []byte }

// register makes a context know a pin.
func (h *hold) register(p *pin) (*cuda.Host, error) {
	h.pinning.Lock()
	defer h.pinning.Unlock()
	if host := h.pins[p]; host != nil {
		return host, nil
	}
	host, err := h.context.Register(p.memory)
	if err == nil {
		h.pins[p] = host
	}
	return host, err
}

// unregister has it forget one. One that cannot be forgotten is known still.
func (h *hold) unregister(p *pin) error {
	h.pinning.Lock()
	defer h.pinning.Unlock()
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

// pinned is where the GPU has memory of the host, 0 for nowhere.
func (g *GPU) pinned(h *hold, b []byte) cuda.Pointer {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	g.noting.Lock()
	i := slices.IndexFunc(g.pins, func(p *pin) bool {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(p.memory)))
		return first >= begin && first+uintptr(len(b)) <= begin+uintptr(len(p.memory))
	})
	var p *pin
	if i >= 0 {
		p = g.pins[i]
	}
	g.noting.Unlock()
	if p == nil {
		return 0
	}
	host, err := h.register(p)
	if err != nil {
		return 0 // a processor copies
	}
	return host.Pointer() + cuda.Pointer(first-uintptr(unsafe.Pointer(unsafe.SliceData(p.memory))))
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
