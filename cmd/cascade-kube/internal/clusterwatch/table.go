package clusterwatch

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// table is what one list-and-watch has read, each object converted when it arrives. It
// implements cache.ReflectorStore. Methods may be called from any goroutine.
type table[T any] struct {
	convert func(object any) (T, bool) // false: the object is of no interest
	changed func()                     // called without the lock

	mu     sync.Mutex
	rows   map[string]T // by namespace and name; guarded by mu
	listed bool         // a list was read completely; guarded by mu
}

var _ cache.ReflectorStore = (*table[int])(nil)

func newTable[T any](convert func(any) (T, bool), changed func()) *table[T] {
	return &table[T]{convert: convert, changed: changed, rows: make(map[string]T)}
}

// keyOf returns the namespace and the name of an object.
func keyOf(object any) (string, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	return m.GetNamespace() + "/" + m.GetName(), nil
}

// Add implements cache.ReflectorStore.
func (t *table[T]) Add(object any) error {
	key, err := keyOf(object)
	if err != nil {
		return err
	}
	row, ok := t.convert(object)
	t.mu.Lock()
	if ok {
		t.rows[key] = row
	} else {
		delete(t.rows, key)
	}
	t.mu.Unlock()
	t.changed()
	return nil
}

// Update implements cache.ReflectorStore.
func (t *table[T]) Update(object any) error { return t.Add(object) }

// Delete implements cache.ReflectorStore.
func (t *table[T]) Delete(object any) error {
	key, err := keyOf(object)
	if err != nil {
		return err
	}
	t.mu.Lock()
	delete(t.rows, key)
	t.mu.Unlock()
	t.changed()
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *table[T]) Replace(objects []any, _ string) error {
	rows := make(map[string]T, len(objects))
	for _, o := range objects {
		key, err := keyOf(o)
		if err != nil {
			return err
		}
		if row, ok := t.convert(o); ok {
			rows[key] = row
		}
	}
	t.mu.Lock()
	t.rows, t.listed = rows, true
	t.mu.Unlock()
	t.changed()
	return nil
}

// Resync implements cache.ReflectorStore: nothing is kept that could be stale.
func (t *table[T]) Resync() error { return nil }

// isListed reports whether a list was read completely.
func (t *table[T]) isListed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listed
}

// rowsIfListed returns the rows, in any order; false before a list was read.
func (t *table[T]) rowsIfListed() ([]T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]T, 0, len(t.rows))
	for _, row := range t.rows {
		out = append(out, row)
	}
	return out, t.listed
}
