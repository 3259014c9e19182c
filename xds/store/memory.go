package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cascadeinfer/cascade/internal/wakeup"
)

// memory is a Backend that lives as long as the process. Its limits are small, so that all
// control planes of tests store large things in pieces.
type memory struct {
	mu       sync.Mutex
	root     []byte
	revision uint64        // of root; grows by one with every write
	changed  chan struct{} // closed at the next change
	blobs    map[string][]byte
}

// NewMemory returns a Backend that lives as long as the process.
func NewMemory() Backend {
	return &memory{changed: make(chan struct{}), blobs: make(map[string][]byte)}
}

func (m *memory) String() string { return "memory" }

func (m *memory) Limits() Limits { return Limits{Plan: 0, State: 1 << 10, Blob: 64 << 10} }

func (m *memory) Close() error { return nil }

// do runs f under the lock, unless ctx has ended.
func (m *memory) do(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return f()
}

func (m *memory) version() Version {
	if m.root == nil {
		return ""
	}
	return Version(strconv.FormatUint(m.revision, 10))
}

func (m *memory) ReadRoot(ctx context.Context) (r Root, err error) {
	err = m.do(ctx, func() error {
		r = Root{m.root, m.version()}
		return nil
	})
	return r, err
}

func (m *memory) SwapRoot(ctx context.Context, old Version, root []byte) (v Version, err error) {
	err = m.do(ctx, func() error {
		if old != m.version() {
			return fmt.Errorf("memory: %w", ErrConflict)
		}
		m.root = slices.Clone(root)
		m.revision++
		v = m.version()
		close(m.changed)
		m.changed = make(chan struct{})
		return nil
	})
	return v, err
}

func (m *memory) WatchRoot(ctx context.Context, changed chan<- struct{}) {
	for {
		m.mu.Lock()
		next := m.changed
		m.mu.Unlock()
		wakeup.Send(changed)
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

func (m *memory) CreateBlob(ctx context.Context, folder, name string, data []byte) error {
	return m.do(ctx, func() error {
		if _, exists := m.blobs[folder+"/"+name]; exists {
			return fmt.Errorf("blob %s/%s: %w", folder, name, ErrExists)
		}
		m.blobs[folder+"/"+name] = slices.Clone(data)
		return nil
	})
}

func (m *memory) ReplaceBlob(ctx context.Context, folder, name string, data []byte) error {
	return m.do(ctx, func() error {
		m.blobs[folder+"/"+name] = slices.Clone(data)
		return nil
	})
}

func (m *memory) ReadBlob(ctx context.Context, folder, name string) (data []byte, err error) {
	err = m.do(ctx, func() error {
		var ok bool
		if data, ok = m.blobs[folder+"/"+name]; !ok {
			return fmt.Errorf("blob %s/%s: %w", folder, name, ErrNoBlob)
		}
		return nil
	})
	return data, err
}

func (m *memory) ListBlobs(ctx context.Context, folder string) (names []string, err error) {
	err = m.do(ctx, func() error {
		for path := range maps.Keys(m.blobs) {
			if name, ok := strings.CutPrefix(path, folder+"/"); ok {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

func (m *memory) RemoveBlob(ctx context.Context, folder, name string) error {
	return m.do(ctx, func() error {
		delete(m.blobs, folder+"/"+name)
		return nil
	})
}
