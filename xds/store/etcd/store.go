package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cascadeinfer/cascade/internal/wakeup"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Sizes, in bytes. etcd takes requests of 1.5 MiB by default. The plan is not in the root, which is
// written every second: it would fill etcd's history.
const (
	maxState = 512 << 10
	maxBlob  = 1 << 20
	// maxKeys bounds a listing.
	maxKeys = 10_000
)

var _ store.Backend = (*Client)(nil)

// rootKey is the key of the root.
func (c *Client) rootKey() string { return c.cfg.Prefix + "/root" }

func (c *Client) blobKey(folder, name string) string { return c.cfg.Prefix + "/" + folder + "/" + name }

// String implements store.Backend.
func (c *Client) String() string { return "etcd key " + c.rootKey() }

// Limits implements store.Backend.
func (c *Client) Limits() store.Limits { return store.Limits{Plan: 0, State: maxState, Blob: maxBlob} }

// ReadRoot implements store.Backend. The read is linearizable.
func (c *Client) ReadRoot(ctx context.Context) (root store.Root, err error) {
	err = c.call(ctx, "read the plan", func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Get(ctx, c.rootKey())
		if err == nil && len(r.Kvs) > 0 {
			root = store.Root{Data: r.Kvs[0].Value, Version: versionAt(r.Kvs[0].ModRevision)}
		}
		return err
	})
	return root, err
}

func versionAt(revision int64) store.Version { return store.Version(strconv.FormatInt(revision, 10)) }

// SwapRoot implements store.Backend.
func (c *Client) SwapRoot(ctx context.Context, old store.Version, root []byte) (v store.Version, err error) {
	revision := int64(0)
	if old != "" {
		if revision, err = strconv.ParseInt(string(old), 10, 64); err != nil || versionAt(revision) != old {
			return "", fmt.Errorf("%s: %w", c, store.ErrConflict)
		}
	}
	err = c.call(ctx, "store the plan", func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.rootKey()), "=", revision)).
			Then(clientv3.OpPut(c.rootKey(), string(root))).Commit()
		if err == nil && !r.Succeeded {
			err = store.ErrConflict
		}
		if err == nil {
			v = versionAt(r.Header.Revision)
		}
		return err
	})
	return v, err
}

// WatchRoot implements store.Backend. The client of etcd resumes a watch that is cut at the revision
// that it has reached. When that was compacted meanwhile, or the member has no leader, the watch ends,
// and the next one begins with the present: its first event is that it was created.
func (c *Client) WatchRoot(ctx context.Context, changed chan<- struct{}) {
	conn, err := c.connect(ctx)
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for r := range conn.Watch(ctx, c.rootKey(), clientv3.WithCreatedNotify(), clientv3.WithFragment()) {
		if r.Err() != nil {
			return
		}
		wakeup.Send(changed)
	}
}

// CreateBlob implements store.Backend.
func (c *Client) CreateBlob(ctx context.Context, folder, name string, data []byte) error {
	key := c.blobKey(folder, name)
	return c.call(ctx, "create "+key, func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, string(data))).Commit()
		if err == nil && !r.Succeeded {
			err = store.ErrExists
		}
		return err
	})
}

// ReplaceBlob implements store.Backend.
func (c *Client) ReplaceBlob(ctx context.Context, folder, name string, data []byte) error {
	key := c.blobKey(folder, name)
	return c.call(ctx, "write "+key, func(ctx context.Context, conn *clientv3.Client) error {
		_, err := conn.Put(ctx, key, string(data))
		return err
	})
}

// ReadBlob implements store.Backend.
func (c *Client) ReadBlob(ctx context.Context, folder, name string) (data []byte, err error) {
	key := c.blobKey(folder, name)
	err = c.call(ctx, "read "+key, func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Get(ctx, key)
		if err == nil && len(r.Kvs) == 0 {
			err = store.ErrNoBlob
		}
		if err == nil {
			data = r.Kvs[0].Value
		}
		return err
	})
	return data, err
}

// ListBlobs implements store.Backend.
func (c *Client) ListBlobs(ctx context.Context, folder string) (names []string, err error) {
	prefix := c.blobKey(folder, "")
	err = c.call(ctx, "list "+prefix, func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(maxKeys))
		if err != nil {
			return err
		}
		if r.More {
			return errTooMany
		}
		names = nil
		for _, kv := range r.Kvs {
			names = append(names, strings.TrimPrefix(string(kv.Key), prefix))
		}
		return nil
	})
	return names, err
}

var errTooMany = errors.New("more than 10000 keys: only the control planes of one fleet may use this prefix")

// RemoveBlob implements store.Backend.
func (c *Client) RemoveBlob(ctx context.Context, folder, name string) error {
	key := c.blobKey(folder, name)
	return c.call(ctx, "remove "+key, func(ctx context.Context, conn *clientv3.Client) error {
		_, err := conn.Delete(ctx, key)
		return err
	})
}
