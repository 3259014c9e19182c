package kubernetes

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/cascadeinfer/cascade/xds/store"
)

// Collector is the state of a collection.
type Collector = collector

// Collect makes a step of a collection, as of a time.
func (s *Store) Collect(ctx context.Context, g *Collector, now time.Time) error {
	return s.collectStep(ctx, g, now)
}

// CollectInterval is the time between two searches.
const CollectInterval = collectInterval

// BeforeWrite sets what is called before each write of the Lease.
func (s *Store) BeforeWrite(f func()) { s.beforeWrite = f }

// Read reads the stored object once.
func (s *Store) Read(ctx context.Context) (store.Object, error) {
	got, err := s.read(ctx, content{})
	return got.object(), err
}

// ConfigMaps returns the names of the ConfigMaps of a kind.
func (c *Client) ConfigMaps(ctx context.Context, kind string) (names []string, err error) {
	all, err := c.listConfigMaps(ctx, kind, "")
	for _, object := range all {
		names = append(names, object.Name)
	}
	return names, err
}

// DeleteConfigMap removes a ConfigMap.
func (c *Client) DeleteConfigMap(ctx context.Context, name string) error {
	return c.deleteConfigMap(ctx, name, "")
}

// Lease returns the Lease; nil if there is none.
func (c *Client) Lease(ctx context.Context) (*coordinationv1.Lease, error) { return c.getLease(ctx) }

// EditLease replaces the Lease as an operator would, and returns its annotations before.
func (c *Client) EditLease(ctx context.Context, edit func(annotations map[string]string)) error {
	lease, err := c.getLease(ctx)
	if err != nil {
		return err
	}
	edit(lease.Annotations)
	return c.coordination.Put().Namespace(c.namespace).Resource(leases).Name(c.name).Body(lease).Do(ctx).Error()
}

// ReadNotes is All at a time.
func (n *Notes) ReadNotes(ctx context.Context, now time.Time) ([][]byte, error) {
	return n.read(ctx, now)
}

// ParsePointer is the decoder, for fuzzing.
func ParsePointer(text string) (size, parts int, err error) {
	p, err := parsePointer(text)
	if p == nil {
		return 0, 0, err
	}
	return p.Size, p.Parts, err
}

// Name returns the name of the store.
func (c *Client) Name() string { return c.name }
