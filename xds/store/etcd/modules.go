package etcd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

// keySet is the keys of one content, with the revisions at which they were last written.
type keySet map[string]int64

// id identifies the content and its last write.
func (s keySet) id(sum string) string {
	newest := int64(0)
	for _, revision := range s {
		newest = max(newest, revision)
	}
	return fmt.Sprintf("%s@%d", sum, newest)
}

// listSets returns the sets in a folder, by hash.
func (c *Client) listSets(ctx context.Context, folder string) (map[string]keySet, error) {
	prefix := c.key(folder) + "/"
	keys, err := c.listKeys(ctx, prefix)
	if err != nil {
		return nil, err
	}
	sets := make(map[string]keySet)
	for key, revision := range keys {
		sum, _, ok := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		if !ok {
			continue
		}
		if sets[sum] == nil {
			sets[sum] = make(keySet)
		}
		sets[sum][key] = revision
	}
	return sets, nil
}

// removeSet removes a set that was not written since it was listed, if the conditions hold,
// and reports whether it did.
func (c *Client) removeSet(ctx context.Context, folder, sum string, set keySet, conditions []clientv3.Cmp) (removed bool, err error) {
	conditions = slices.Clone(conditions)
	for key, revision := range set {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", revision))
	}
	if len(conditions) > maxConditions {
		conditions = conditions[:maxConditions] // not written by this program
	}
	err = c.call(ctx, "remove what is not used", writeTimeout, func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Txn(ctx).If(conditions...).Then(clientv3.OpDelete(c.key(folder, sum)+"/", clientv3.WithPrefix())).Commit()
		removed = err == nil && r.Succeeded
		return err
	})
	return removed, err
}

// maxConditions is less than the operations that etcd allows in a transaction, 128.
const maxConditions = 100

// Modules are store.Modules in etcd.
type Modules struct {
	c *Client

	mu   sync.Mutex
	seen map[string]time.Time // when Sweep first found a module that is not kept, by its id
}

var _ store.Modules = (*Modules)(nil)

// Modules returns the store of policy modules.
func (c *Client) Modules() *Modules { return &Modules{c: c} }

const modulesFolder = "modules"

// Put implements store.Modules. It writes all parts, also where they exist, so that a Sweep
// that has begun does not remove them.
func (m *Modules) Put(sum lifecycle.Digest, code []byte) error {
	if err := store.CheckModule(sum, code); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	pieces := remotestore.Split(code, chunkSize)
	for n, piece := range pieces {
		key := m.c.key(modulesFolder, hex.EncodeToString(sum[:]), fmt.Sprintf("%04d-%04d", n, len(pieces)))
		err := m.c.call(ctx, "store a module", writeTimeout, func(ctx context.Context, conn *clientv3.Client) error {
			_, err := conn.Put(ctx, key, string(piece))
			return err
		})
		if err != nil {
			return fmt.Errorf("modules: %w", err)
		}
	}
	return nil
}

// Get implements store.Modules. A module whose Put was interrupted is not stored.
func (m *Modules) Get(sum lifecycle.Digest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	keys, err := m.c.listKeys(ctx, m.c.key(modulesFolder, hex.EncodeToString(sum[:]))+"/")
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	names := slices.Sorted(maps.Keys(keys))
	var code []byte
	for n, key := range names {
		if !strings.HasSuffix(key, fmt.Sprintf("/%04d-%04d", n, len(names))) {
			names = nil
			break
		}
		piece, err := m.c.getAt(ctx, key, 0)
		if errors.Is(err, errMissing) {
			names = nil
			break
		}
		if err != nil {
			return nil, fmt.Errorf("modules: %w", err)
		}
		if len(code)+len(piece) > store.MaxModule {
			return nil, fmt.Errorf("module %x in etcd: more than %d bytes", sum[:6], store.MaxModule)
		}
		code = append(code, piece...)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("module %x: %w in etcd", sum[:6], store.ErrNoModule)
	}
	if err := store.CheckModule(sum, code); err != nil {
		return nil, fmt.Errorf("%w, in etcd", err)
	}
	return code, nil
}

// Sweep implements store.Modules. When a module was put is not known by the clock of this
// host, so its age counts from the first Sweep that found it unused.
func (m *Modules) Sweep(keep map[lifecycle.Digest]bool, before time.Time) error {
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	sets, err := m.c.listSets(ctx, modulesFolder)
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, now := make(map[string]time.Time), time.Now()
	var errs []error
	for sum, set := range sets {
		raw, err := hex.DecodeString(sum)
		if err != nil || len(raw) != len(lifecycle.Digest{}) || keep[lifecycle.Digest(raw)] {
			continue
		}
		id := set.id(sum)
		since, ok := m.seen[id]
		if !ok {
			since = now
		}
		if !since.Before(before) {
			seen[id] = since
			continue
		}
		if _, err := m.c.removeSet(ctx, modulesFolder, sum, set, nil); err != nil {
			errs = append(errs, fmt.Errorf("modules: %w", err))
		}
	}
	m.seen = seen
	return errors.Join(errs...)
}
