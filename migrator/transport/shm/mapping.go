package shm

import (
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// mapping is the pool of a source, mapped read-only. A second pull from the same pool
// uses it again, since the page tables of what was read before are in place.
type mapping struct {
	file      os.FileInfo // what is mapped
	bytes     []byte
	users     int
	idleSince time.Time // when the last user released it
}

// mappings are the mappings of one transport. It is safe for concurrent use.
type mappings struct {
	keeps func() bool // whether unused mappings are kept

	mu  sync.Mutex
	all []*mapping
}

// open returns the mapping of the first size bytes of a file, and makes it if there is
// none. It is given back by release.
func (ms *mappings) open(f *os.File, size int64) (*mapping, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat the source's pool: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() < size || size > math.MaxInt {
		return nil, fmt.Errorf("the source's pool is a file of mode %v and %d bytes; its layout needs a regular file of %d bytes", info.Mode(), info.Size(), size)
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for _, m := range ms.all {
		// The inode of a mapped file is not reused for another file.
		if os.SameFile(m.file, info) && int64(len(m.bytes)) == size {
			m.users++
			return m, nil
		}
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the source's pool: %w", err)
	}
	m := &mapping{file: info, bytes: b, users: 1}
	ms.all = append(ms.all, m)
	return m, nil
}

// release ends one use.
func (ms *mappings) release(m *mapping, now time.Time) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m.users--
	m.idleSince = now
	var oldest *mapping
	idle := 0
	for _, m := range ms.all {
		if m.users > 0 {
			continue
		}
		idle++
		if oldest == nil || m.idleSince.Before(oldest.idleSince) {
			oldest = m
		}
	}
	ms.unmapLocked(func(m *mapping) bool { return !ms.keeps() || idle > maxIdle && m == oldest })
}

// unmapIdle unmaps the mappings that have been unused since before.
func (ms *mappings) unmapIdle(before time.Time) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.unmapLocked(func(m *mapping) bool { return m.idleSince.Before(before) })
}

// unmapLocked unmaps the unused mappings that match.
func (ms *mappings) unmapLocked(match func(*mapping) bool) {
	kept := ms.all[:0]
	for _, m := range ms.all {
		if m.users > 0 || !match(m) {
			kept = append(kept, m)
			continue
		}
		if err := unix.Munmap(m.bytes); err != nil {
			panic("internal error: munmap of a mapping: " + err.Error())
		}
	}
	clear(ms.all[len(kept):])
	ms.all = kept
}
