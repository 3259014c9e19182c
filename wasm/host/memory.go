package host

import "github.com/tetratelabs/wazero/experimental"

// memory is the linear memory of one instance. It lies outside Go's heap, so that it grows
// without a copy and leaves no garbage.
type memory struct {
	mapped []byte // reserved up to max; nil where the system cannot reserve
	heap   []byte // instead of mapped
	max    uint64
}

var (
	_ experimental.MemoryAllocator = (*memory)(nil)
	_ experimental.LinearMemory    = (*memory)(nil)
)

// Allocate implements experimental.MemoryAllocator; an instance has one memory.
func (m *memory) Allocate(_, most uint64) experimental.LinearMemory {
	m.mapped, m.max = reserve(most), most
	return m
}

// Reallocate implements experimental.LinearMemory.
func (m *memory) Reallocate(size uint64) []byte {
	switch {
	case size > m.max:
		return nil
	case m.mapped != nil:
		return m.mapped[:size:size]
	case size > uint64(cap(m.heap)):
		m.heap = append(m.heap, make([]byte, size-uint64(len(m.heap)))...)
	}
	m.heap = m.heap[:size]
	return m.heap
}

// Free implements experimental.LinearMemory. It is idempotent.
func (m *memory) Free() {
	if m.mapped != nil {
		unreserve(m.mapped)
	}
	m.mapped, m.heap, m.max = nil, nil, 0
}
