package etcd

import (
	"context"
	"time"

	"github.com/cascadeinfer/cascade/xds/store"
)

// Collect removes the chunks that no document names, as of a time.
func (s *Store) Collect(ctx context.Context, g *Garbage, now time.Time) error {
	got, err := s.read(ctx, content{})
	if err != nil {
		return err
	}
	g.c = s.c
	return g.search(ctx, now, got.version)
}

// BeforeSwap sets what is called before each transaction.
func (s *Store) BeforeSwap(f func()) { s.beforeSwap = f }

// Garbage is a collector.
type Garbage = collector

// CollectAge is how long unnamed chunks stay.
const CollectAge = collectAge

// Read reads the stored object once.
func (s *Store) Read(ctx context.Context) (store.Object, error) {
	got, err := s.read(ctx, content{})
	return got.object(), err
}

// ParsePointer and ParseVersion are the decoders, for fuzzing.
func ParsePointer(value []byte) (size, chunks int, err error) {
	at, err := parsePointer(value)
	if at == nil {
		return 0, 0, err
	}
	return at.Size, at.Chunks, err
}

// ParseVersion returns the form that a version is parsed to.
func ParseVersion(v store.Version) (store.Version, bool) {
	out, ok := parseVersion(v)
	return store.Version(out.String()), ok
}
