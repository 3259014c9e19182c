package cuda

import (
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// packedBytes is how much is packed in pinned memory at a time, about.
const packedBytes = 4 << 20

// Gather copies blocks to the host. See transport.Device.
func (m *Memory) Gather(dst []byte, l transport.Layout, blocks []uint32) error {
	return m.packed(dst, l, blocks, func(lane *lane, part []byte, pool cuda.Pointer, blocks []uint32) error {
		if err := lane.pass(m.gpu.config.Groups, lane.hold.gather, pool, lane.pack.Pointer(), l, l.Packed(len(blocks)), blocks); err != nil {
			return err
		}
		copy(part, lane.pack.Bytes())
		return nil
	})
}

// Scatter copies blocks from the host. See transport.Device.
func (m *Memory) Scatter(l transport.Layout, blocks []uint32, src []byte) error {
	return m.packed(src, l, blocks, func(lane *lane, part []byte, pool cuda.Pointer, blocks []uint32) error {
		copy(lane.pack.Bytes(), part)
		return lane.pass(m.gpu.config.Groups, lane.hold.scatter, lane.pack.Pointer(), pool, l.Packed(len(blocks)), l, blocks)
	})
}

// packed takes blocks in portions, with the bytes of each.
func (m *Memory) packed(b []byte, l transport.Layout, blocks []uint32, step func(lane *lane, part []byte, pool cuda.Pointer, blocks []uint32) error) error {
	size := l.BlockBytes()
	if int64(len(b)) != int64(len(blocks))*size {
		return fmt.Errorf("%d bytes for %d blocks of %d", len(b), len(blocks), size)
	}
	if len(blocks) == 0 {
		return nil
	}
	err := m.work(func(lane *lane, pool cuda.Pointer) error {
		most := int(max(1, packedBytes/size))
		err := lane.hasPack(int64(min(most, len(blocks))) * size)
		for at := 0; at < len(blocks) && err == nil; at += most {
			n := min(most, len(blocks)-at)
			err = step(lane, b[int64(at)*size:][:int64(n)*size], pool, blocks[at:at+n])
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("a pool on gpu %d: %w", m.gpu.config.Ordinal, err)
	}
	return nil
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
