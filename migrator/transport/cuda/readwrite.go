package cuda

import (
	"fmt"
	"io"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
)

var (
	_ io.ReaderAt = (*Memory)(nil)
	_ io.WriterAt = (*Memory)(nil)
)

// accessBytes is the number of bytes copied through pinned memory at a time.
const accessBytes = 1 << 20

// ReadAt copies from the pool into b. Transports do not use it; emulated engines, tests
// and tools that inspect a pool do.
func (m *Memory) ReadAt(b []byte, offset int64) (int, error) {
	return m.access(b, offset, func(l *copyStream, at cuda.Pointer, part []byte) error {
		if err := l.stream.CopyToHost(l.description, 0, at, int64(len(part))); err != nil {
			return l.drainAfter(err)
		}
		if err := l.waitDone(); err != nil {
			return err
		}
		copy(part, l.description.Bytes())
		return nil
	})
}

// WriteAt copies b into the pool. See ReadAt.
func (m *Memory) WriteAt(b []byte, offset int64) (int, error) {
	return m.access(b, offset, func(l *copyStream, at cuda.Pointer, part []byte) error {
		copy(l.description.Bytes(), part)
		if err := l.stream.CopyToDevice(at, l.description, 0, int64(len(part))); err != nil {
			return l.drainAfter(err)
		}
		return l.waitDone()
	})
}

// access runs step for each part of b, and returns how many bytes were copied.
func (m *Memory) access(b []byte, offset int64, step func(l *copyStream, at cuda.Pointer, part []byte) error) (n int, err error) {
	if size := m.handle.Size - m.handle.Offset; offset < 0 || offset > size || int64(len(b)) > size-offset {
		return 0, fmt.Errorf("%d bytes at %d of a pool of %d", len(b), offset, size)
	}
	err = m.withStream(func(l *copyStream, pool cuda.Pointer) error {
		err := l.reserve(accessBytes, 1)
		for n < len(b) && err == nil {
			part := b[n:min(n+accessBytes, len(b))]
			if err = step(l, pool+cuda.Pointer(offset)+cuda.Pointer(n), part); err == nil {
				n += len(part)
			}
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("a pool on gpu %d: %w", m.gpu.config.Ordinal, err)
	}
	return n, err
}
