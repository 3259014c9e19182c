package cuda

import (
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// packedBytes is the number of bytes packed in pinned memory at a time, about.
const packedBytes = 4 << 20

// Gather copies blocks to host memory. See transport.Device.
func (m *Memory) Gather(dst []byte, l transport.Layout, blocks []uint32) error {
	return m.copyPacked(dst, l, blocks, packedCopy{
		launch: func(lane *copyStream, pool, pack cuda.Pointer, blocks []uint32) error {
			return lane.runPackedKernel(m.gpu.config.Groups, lane.context.gather, pool, pack, l, l.Packed(len(blocks)), blocks)
		},
		after: func(part, pack []byte) { copy(part, pack) },
	})
}

// Scatter copies blocks from host memory. See transport.Device.
func (m *Memory) Scatter(l transport.Layout, blocks []uint32, src []byte) error {
	return m.copyPacked(src, l, blocks, packedCopy{
		before: func(part, pack []byte) { copy(pack, part) },
		launch: func(lane *copyStream, pool, pack cuda.Pointer, blocks []uint32) error {
			return lane.runPackedKernel(m.gpu.config.Groups, lane.context.scatter, pack, pool, l.Packed(len(blocks)), l, blocks)
		},
	})
}

// packedCopy is one direction of a copy: the launch of its kernel, and, if the packed
// blocks are not in memory that the GPU can reach, the copy by the processor before or
// after it.
type packedCopy struct {
	launch        func(lane *copyStream, pool, pack cuda.Pointer, blocks []uint32) error
	before, after func(part, pack []byte)
}

// copyPacked copies blocks in batches to or from b.
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

// reservePacked makes room for so many packed bytes. The stream must be idle.
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

// runPackedKernel launches the gather or the scatter kernel, one of whose sides is
// packed, and waits for it.
func (l *copyStream) runPackedKernel(groups int, k cuda.Kernel, src, dst cuda.Pointer, from, to transport.Layout, blocks []uint32) error {
	c, regions := tilingFor(from), len(from.Regions)
	pairs, err := l.describe(c, src, dst, from, to, len(blocks))
	if err != nil {
		return err
	}
	for i, b := range blocks { // the packed side ignores its number
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
