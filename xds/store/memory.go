package store

import (
	"context"
	"fmt"
	"strconv"
	"sync"
)

// Memory is a Store that lives as long as the process. The zero value is
// empty and ready.
type Memory struct {
	mu       sync.Mutex
	object   Object
	revision uint64
	changed  chan struct{} // closed at the next change; nil while there is no watch
}

var _ Store = (*Memory)(nil)

// CompareAndSwap implements Store.
func (m *Memory) CompareAndSwap(ctx context.Context, old Version, object Object) (Version, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := object.Validate(); err != nil {
		return "", fmt.Errorf("plan in memory: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old != m.versionLocked() {
		return "", fmt.Errorf("plan in memory: %w", ErrConflict)
	}
	m.object = object.Clone()
	m.revision++
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
	return m.versionLocked(), nil
}

func (m *Memory) versionLocked() Version {
	if m.revision == 0 {
		return ""
	}
	return Version(strconv.FormatUint(m.revision, 10))
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context) <-chan Update {
	updates := make(chan Update)
	go func() {
		defer close(updates)
		for {
			m.mu.Lock()
			u := Update{Object: m.object.Clone(), Version: m.versionLocked()}
			if m.changed == nil {
				m.changed = make(chan struct{})
			}
			changed := m.changed
			m.mu.Unlock()
			select {
			case updates <- u:
			case <-ctx.Done():
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return updates
}
