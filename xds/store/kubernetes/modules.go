package kubernetes

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Modules are store.Modules in Kubernetes.
type Modules struct {
	c *Client

	mu   sync.Mutex
	seen map[string]time.Time // when Sweep first found a module that is not kept, by its id
}

var _ store.Modules = (*Modules)(nil)

// Modules returns the store of policy modules.
func (c *Client) Modules() *Modules { return &Modules{c: c} }

// moduleGroup returns the group of the parts of a module: a label has at most 63 bytes.
func moduleGroup(sum lifecycle.Digest) string { return hex.EncodeToString(sum[:])[:60] }

// modulePart returns the name of a part of a module. Names sort as the parts do.
func (c *Client) modulePart(sum lifecycle.Digest, n, parts int) string {
	return c.objectName(moduleKind, hex.EncodeToString(sum[:]), fmt.Sprintf("%04d-%04d", n, parts))
}

// putTries bounds how often a part of a module is created or touched because Sweep removed it
// meanwhile.
const putTries = 3

// Put implements store.Modules. It touches the parts that exist, so that a Sweep that has begun
// does not remove them.
func (m *Modules) Put(sum lifecycle.Digest, code []byte) error {
	if err := store.CheckModule(sum, code); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	parts := remotestore.Split(code, partSize)
	for n, part := range parts {
		object := &corev1.ConfigMap{
			ObjectMeta: m.c.meta(m.c.modulePart(sum, n, len(parts)), moduleKind, moduleGroup(sum)),
			Immutable:  new(true), BinaryData: map[string][]byte{partKey: part},
		}
		var err error
		for range putTries {
			if err = m.c.createConfigMap(ctx, object); apierrors.IsAlreadyExists(err) {
				err = m.c.touchConfigMap(ctx, object.Name)
			}
			if !apierrors.IsNotFound(err) {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("modules: %w", err)
		}
	}
	return nil
}

// touchConfigMap gives a ConfigMap another resourceVersion.
func (c *Client) touchConfigMap(ctx context.Context, name string) error {
	patch := []byte(fmt.Sprintf(`{"metadata":{"annotations":{"cascade/put":%q}}}`, time.Now().UTC().Format(time.RFC3339Nano)))
	return c.call(ctx, "touch ConfigMap "+name, writeTimeout, func(ctx context.Context) error {
		return c.core.Patch(types.MergePatchType).Namespace(c.namespace).Resource(configMaps).Name(name).Body(patch).Do(ctx).Error()
	})
}

// Get implements store.Modules. A module whose Put was interrupted is not stored.
func (m *Modules) Get(sum lifecycle.Digest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	all, err := m.c.listConfigMaps(ctx, moduleKind, moduleGroup(sum))
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	var code []byte
	for n := range all {
		object, err := m.c.getConfigMap(ctx, m.c.modulePart(sum, n, len(all)))
		if errors.Is(err, errMissing) {
			all = nil
			break
		}
		if err != nil {
			return nil, fmt.Errorf("modules: %w", err)
		}
		if code = append(code, partOf(object)...); len(code) > store.MaxModule {
			return nil, fmt.Errorf("module %x in kubernetes: more than %d bytes", sum[:6], store.MaxModule)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("module %x: %w in kubernetes", sum[:6], store.ErrNoModule)
	}
	if err := store.CheckModule(sum, code); err != nil {
		return nil, fmt.Errorf("%w, in kubernetes", err)
	}
	return code, nil
}

// Sweep implements store.Modules. When a module was put is not known by the clock of this host,
// so its age counts from the first Sweep that found it unused.
func (m *Modules) Sweep(keep map[lifecycle.Digest]bool, before time.Time) error {
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	all, err := m.c.listConfigMaps(ctx, moduleKind, "")
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	kept := make(map[string]bool)
	for sum := range keep {
		kept[moduleGroup(sum)] = true
	}
	groups := make(map[string][]metav1.ObjectMeta)
	for _, object := range all {
		if group := object.Labels[groupLabel]; group != "" && !kept[group] {
			groups[group] = append(groups[group], object)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, now := make(map[string]time.Time), time.Now()
	var errs []error
	for group, parts := range groups {
		id := versionsOf(group, parts)
		since, ok := m.seen[id]
		if !ok {
			since = now
		}
		if !since.Before(before) {
			seen[id] = since
			continue
		}
		// In the order of Put, which overtakes no removal: a part that it has touched stays, and
		// so do those behind it.
		for _, part := range parts {
			if err := m.c.deleteConfigMap(ctx, part.Name, part.ResourceVersion); err != nil {
				if !apierrors.IsConflict(err) {
					errs = append(errs, fmt.Errorf("modules: %w", err))
				}
				break
			}
		}
	}
	m.seen = seen
	return errors.Join(errs...)
}

// versionsOf sorts the parts of a module, and identifies them and their last change.
func versionsOf(group string, parts []metav1.ObjectMeta) string {
	slices.SortFunc(parts, func(a, b metav1.ObjectMeta) int { return strings.Compare(a.Name, b.Name) })
	id := group
	for _, part := range parts {
		id += "/" + part.ResourceVersion
	}
	return id
}
