package shm

import (
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// mapping is a source's pool, mapped for reading. A second move from the same
// pool uses it again: the page tables of what was read before are in place.
type mapping struct {
	device, inode uint64
	bytes         []byte
	users         int
	left          time.Time // when the last user left
}

// mappings are those of one transport. It is safe for concurrent use.
type mappings struct {
	mu   sync.Mutex
	kept bool // whether mappings without users stay
	all  []*mapping
}

// open maps the first size bytes of a file, or finds them mapped.
func (ms *mappings) open(f *os.File, size int64) (*mapping, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("the source's pool: %w", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Size < size || size > math.MaxInt {
		return nil, fmt.Errorf("the source's pool is a file of mode %o and %d bytes; its layout needs a regular one of %d", stat.Mode, stat.Size, size)
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for _, m := range ms.all {
		// An inode that is mapped is not given to another file.
		if m.device == stat.Dev && m.inode == stat.Ino && int64(len(m.bytes)) == size {
			m.users++
			return m, nil
		}
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the source's pool: %w", err)
	}
	m := &mapping{device: stat.Dev, inode: stat.Ino, bytes: b, users: 1}
	ms.all = append(ms.all, m)
	return m, nil
}

// release ends one use.
func (ms *mappings) release(m *mapping, now time.Time) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m.users--
	m.left = now
	var oldest *mapping
	idle := 0
	for _, m := range ms.all {
		if m.users > 0 {
			continue
		}
		idle++
		if oldest == nil || m.left.Before(oldest.left) {
			oldest = m
		}
	}
	ms.unmapLocked(func(m *mapping) bool { return !ms.kept || idle > maxIdle && m == oldest })
}

// keep says whether mappings without users stay from now on.
func (ms *mappings) keep(kept bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.kept = kept
	if !kept {
		ms.unmapLocked(func(*mapping) bool { return true })
	}
}

// drop unmaps what nobody has used since before.
func (ms *mappings) drop(before time.Time) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.unmapLocked(func(m *mapping) bool { return m.left.Before(before) })
}

// unmapLocked unmaps those of the chosen that have no users.
func (ms *mappings) unmapLocked(which func(*mapping) bool) {
	kept := ms.all[:0]
	for _, m := range ms.all {
		if m.users > 0 || !which(m) {
			kept = append(kept, m)
			continue
		}
		if err := unix.Munmap(m.bytes); err != nil {
			panic("internal error: unmap what was mapped: " + err.Error())
		}
	}
	clear(ms.all[len(kept):])
	ms.all = kept
}
