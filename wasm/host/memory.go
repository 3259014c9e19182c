package host

import (
	"sync"

	"github.com/tetratelabs/wazero/experimental"
)

// Bounds of the pool of memory of closed instances.
const (
	maxPooledBytes = 256 << 10 // bytes that one instance used: clearing more takes longer than mapping anew
	maxPooled      = 16        // number of memories in the pool
)

// memoryPool allocates the linear memories of a process. They lie outside Go's heap, so
// that they grow without a copy and leave no garbage. The pool reuses the memories of
// small modules.
type memoryPool struct {
	mu   sync.Mutex
	kept [][]byte // guarded by mu: whole mappings, all zero
}

// get returns zeroed memory of that size, nil if the system has none.
func (m *memoryPool) get(bytes uint64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, b := range m.kept {
		if uint64(len(b)) == bytes {
			last := len(m.kept) - 1
			m.kept[n], m.kept[last] = m.kept[last], nil
			m.kept = m.kept[:last]
			return b
		}
	}
	return reserve(bytes)
}

// put returns memory to the pool; its first used bytes may be dirty.
func (m *memoryPool) put(b []byte, used uint64) {
	if used <= maxPooledBytes {
		clear(b[:used])
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.kept) < maxPooled {
			m.kept = append(m.kept, b)
			return
		}
	}
	unreserve(b)
}

// memory is the memory of one instance.
type memory struct {
	from   *memoryPool
	mapped []byte // reserved up to max; nil where the system cannot reserve
	used   uint64
	heap   []byte // instead of mapped
	max    uint64
}

var (
	_ experimental.MemoryAllocator = (*memory)(nil)
	_ experimental.LinearMemory    = (*memory)(nil)
)

// Allocate implements experimental.MemoryAllocator; an instance has one memory.
func (m *memory) Allocate(_, most uint64) experimental.LinearMemory {
	m.mapped, m.max = m.from.get(most), most
	return m
}

// Reallocate implements experimental.LinearMemory.
func (m *memory) Reallocate(size uint64) []byte {
	switch {
	case size > m.max:
		return nil
	case m.mapped == nil:
		if size > uint64(cap(m.heap)) {
			m.heap = append(m.heap, make([]byte, size-uint64(len(m.heap)))...)
		}
		m.heap = m.heap[:size]
		return m.heap
	}
	if size > m.used {
		if size <= maxPooledBytes {
			touch(m.mapped[m.used:size])
		}
		m.used = size
	}
	return m.mapped[:size:size]
}

// Free implements experimental.LinearMemory. It is idempotent.
func (m *memory) Free() {
	if m.mapped != nil {
		m.from.put(m.mapped, m.used)
	}
	m.mapped, m.heap, m.used, m.max = nil, nil, 0, 0
}
