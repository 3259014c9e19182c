package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

// shortName returns a name as a part of a key: a hash where it is too long.
func shortName(name string) string {
	base := identity.Escape(name)
	if len(base) > 200 {
		sum := sha256.Sum256([]byte(name))
		base = hex.EncodeToString(sum[:])
	}
	return base
}

// Notes are store.Notes in etcd. Notes that are not written again are removed by etcd, by a
// lease of its own.
type Notes struct {
	c      *Client
	folder string

	mu      sync.Mutex
	lease   clientv3.LeaseID // 0: none
	renewed time.Time
}

var _ store.Notes = (*Notes)(nil)

// Notes returns the notes in a folder.
func (c *Client) Notes(folder string) *Notes { return &Notes{c: c, folder: folder} }

const (
	// notePage is how many notes a response has; of more than maxNotes, the rest is left out.
	notePage = 8
	maxNotes = 64
)

// Put implements store.Notes.
func (n *Notes) Put(name string, text []byte) error {
	if name == "" || len(text) > store.MaxNote {
		return fmt.Errorf("note of %.60q: %d bytes; must have a name and at most %d bytes", name, len(text), store.MaxNote)
	}
	key := n.c.key("notes", n.folder, shortName(name))
	err := n.c.call(context.Background(), "write a note", noteTimeout, func(ctx context.Context, conn *clientv3.Client) error {
		if len(text) == 0 {
			_, err := conn.Delete(ctx, key)
			return err
		}
		lease, err := n.keepLease(ctx, conn)
		if err == nil {
			_, err = conn.Put(ctx, key, string(text), clientv3.WithLease(lease))
		}
		if isAny(err, rpctypes.ErrLeaseNotFound) { // it has expired
			n.mu.Lock()
			n.lease = 0
			n.mu.Unlock()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("notes: %w", err)
	}
	return nil
}

// keepLease returns a lease of etcd that lasts for most of a note's lifetime.
func (n *Notes) keepLease(ctx context.Context, conn *clientv3.Client) (clientv3.LeaseID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lease != 0 && time.Since(n.renewed) < store.NoteLifetime/6 {
		return n.lease, nil
	}
	if n.lease != 0 {
		_, err := conn.KeepAliveOnce(ctx, n.lease)
		if err == nil {
			n.renewed = time.Now()
			return n.lease, nil
		}
		if !isAny(err, rpctypes.ErrLeaseNotFound) {
			return 0, err
		}
		n.lease = 0
	}
	r, err := conn.Grant(ctx, int64(store.NoteLifetime/time.Second))
	if err != nil {
		return 0, err
	}
	n.lease, n.renewed = r.ID, time.Now()
	return n.lease, nil
}

// All implements store.Notes.
func (n *Notes) All() ([][]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), noteTimeout)
	defer cancel()
	prefix := n.c.key("notes", n.folder) + "/"
	end := clientv3.GetPrefixRangeEnd(prefix)
	var out [][]byte
	for from := prefix; len(out) < maxNotes; {
		var r *clientv3.GetResponse
		err := n.c.call(ctx, "read the notes", noteTimeout, func(ctx context.Context, conn *clientv3.Client) (err error) {
			r, err = conn.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(notePage))
			return err
		})
		if err != nil {
			return out, fmt.Errorf("notes: %w", err)
		}
		for _, kv := range r.Kvs {
			from = string(kv.Key) + "\x00"
			if len(kv.Value) <= store.MaxNote {
				out = append(out, kv.Value)
			}
		}
		if !r.More {
			break
		}
	}
	return out, nil
}

// Counters keep the flow counters of one control plane, compressed. They implement
// fleet.Counters, and are used by one goroutine at a time.
type Counters struct {
	c     *Client
	name  string
	saved remotestore.LastSave
}

// Counters returns the counters of a control plane.
func (c *Client) Counters(name string) *Counters { return &Counters{c: c, name: shortName(name)} }

// Save implements fleet.Counters. Counters that were saved so recently that they would fill the
// history of etcd are skipped: a crash loses what was counted since the last write, up to 8 s for
// each 128 KiB of compressed counters, which is 512 s at remotestore.MaxCounters.
func (k *Counters) Save(data []byte) error {
	if k.saved.IsRecent() {
		return nil
	}
	return k.SaveLast(data)
}

// SaveLast implements fleet.Counters. It writes at once: a restart in order loses nothing.
func (k *Counters) SaveLast(data []byte) error {
	stored, err := remotestore.CompressCounters("etcd", data)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	pieces := remotestore.Split(stored, chunkSize)
	for n, piece := range pieces {
		// Parts of different saves do not mix: Load then fails on the checksum of gzip.
		key := k.c.key("counters", k.name, fmt.Sprintf("%04d", n))
		err := k.c.call(ctx, "store the counters", writeTimeout, func(ctx context.Context, conn *clientv3.Client) error {
			_, err := conn.Txn(ctx).Then(
				clientv3.OpDelete(key+"\x00", clientv3.WithRange(clientv3.GetPrefixRangeEnd(k.c.key("counters", k.name)+"/"))),
				clientv3.OpPut(key, string(piece))).Commit()
			return err
		})
		if err != nil {
			return fmt.Errorf("counters: %w", err)
		}
	}
	k.saved = remotestore.LastSave{At: time.Now(), Size: len(stored)}
	return nil
}

// Load implements fleet.Counters.
func (k *Counters) Load() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	prefix := k.c.key("counters", k.name) + "/"
	var all bytes.Buffer
	for n := 0; n <= remotestore.MaxCounters/chunkSize; n++ {
		piece, err := k.c.getAt(ctx, fmt.Sprintf("%s%04d", prefix, n), 0)
		if errors.Is(err, errMissing) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("counters: %w", err)
		}
		all.Write(piece)
	}
	if all.Len() == 0 {
		return nil, nil
	}
	return remotestore.ExpandCounters("etcd", &all)
}

// maxSecret is the size of a secret in bytes.
const maxSecret = 1024

// CreateOnce returns the secret of a name. The first caller stores what it passes; all others
// get that.
func (c *Client) CreateOnce(ctx context.Context, name string, secret []byte) (stored []byte, err error) {
	if len(secret) == 0 || len(secret) > maxSecret {
		return nil, fmt.Errorf("secret %s: %d bytes: must have 1 to %d", name, len(secret), maxSecret)
	}
	key := c.key("secrets", name)
	err = c.call(ctx, "create "+key, writeTimeout, func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, string(secret))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return err
		}
		stored = secret
		if !r.Succeeded {
			if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
				stored = kvs[0].Value
			}
		}
		if len(stored) > maxSecret {
			return fmt.Errorf("%d bytes, want at most %d", len(stored), maxSecret)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return stored, nil
}
