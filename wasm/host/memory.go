package host

import (
	"sync"

	"github.com/tetratelabs/wazero/experimental"
)

// What is kept of the memory of instances that are closed.
const (
	keptBytes = 256 << 10 // of one, at most: to clear more takes longer than to map it
	keptMost  = 16        // how many
)

// memories are the linear memories of a process: they lie outside Go's heap, where
// they grow without being copied, and leave nothing to collect. Those of small
// modules are used again.
type memories struct {
	mu   sync.Mutex
	kept [][]byte // guarded by mu: whole mappings, all zero
}

// take returns that much zeroed memory, nil when the system has none.
func (m *memories) take(bytes uint64) []byte {
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

// give takes memory back, of which the beginning was used.
func (m *memories) give(b []byte, used uint64) {
	if used <= keptBytes {
		clear(b[:used])
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.kept) < keptMost {
			m.kept = append(m.kept, b)
			return
		}
	}
	unreserve(b)
}

// memory is the memory of one instance.
type memory struct {
	from   *memories
	mapped []byte // all that it may become; nil where the system cannot reserve
	used   uint64
	heap   []byte // instead of mapped
	most   uint64
}

var (
	_ experimental.MemoryAllocator = (*memory)(nil)
	_ experimental.LinearMemory    = (*memory)(nil)
)

// Allocate implements experimental.MemoryAllocator; an instance has one memory.
func (m *memory) Allocate(_, most uint64) experimental.LinearMemory {
	m.mapped, m.most = m.from.take(most), most
	return m
}

// Reallocate implements experimental.LinearMemory.
func (m *memory) Reallocate(size uint64) []byte {
	switch {
	case size > m.most:
		return nil
	case m.mapped == nil:
		if size > uint64(cap(m.heap)) {
			m.heap = append(m.heap, make([]byte, size-uint64(len(m.heap)))...)
		}
		m.heap = m.heap[:size]
		return m.heap
	}
	if size > m.used {
		if size <= keptBytes {
			touch(m.mapped[m.used:size])
		}
		m.used = size
	}
	return m.mapped[:size:size]
}

// Free implements experimental.LinearMemory. It may be called again.
func (m *memory) Free() {
	if m.mapped != nil {
		m.from.give(m.mapped, m.used)
	}
	m.mapped, m.heap, m.used, m.most = nil, nil, 0, 0
}
