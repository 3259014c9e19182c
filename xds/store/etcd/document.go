package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

const (
	// maxInline is the largest document that is one value. A transaction with two of them
	// must fit into a request of 1.5 MiB, which is all that etcd takes by default.
	maxInline = 512 << 10
	// chunkSize is the size of the pieces of larger documents and of modules.
	chunkSize = 1 << 20
)

// pointer is the value of a document that is stored in chunks.
type pointer struct {
	Chunked *chunked `json:"chunked"`
}

type chunked struct {
	SHA256 string `json:"sha256"`
	Size   int    `json:"size"`   // of the document, in bytes
	Chunks int    `json:"chunks"` // numbered from 0
}

// parsePointer returns where a document's chunks are; nil for a document that is the value
// itself.
func parsePointer(value []byte) (*chunked, error) {
	var p pointer
	if len(value) > 1024 || json.Unmarshal(value, &p) != nil || p.Chunked == nil {
		return nil, nil // decoding says what is wrong with it
	}
	d := p.Chunked
	if sum, err := hex.DecodeString(d.SHA256); err != nil || len(sum) != sha256.Size {
		return nil, errors.New("chunked: sha256 is not a hash")
	}
	if d.Size < 1 || d.Size > store.MaxSize || d.Chunks < 1 || d.Chunks > store.MaxSize/1024 {
		return nil, fmt.Errorf("chunked: %d bytes in %d chunks: at most %d bytes are allowed", d.Size, d.Chunks, store.MaxSize)
	}
	return d, nil
}

// chunkKey returns the key of a chunk.
func (c *Client) chunkKey(sum string, n int) string {
	return c.key("chunks", sum, fmt.Sprintf("%04d", n))
}

// putDocument returns the value to store for a document. For a large one it stores the
// chunks, and returns the conditions that they exist, which the transaction that stores the
// value must have: chunks that no value names yet may be collected.
func (c *Client) putDocument(ctx context.Context, body []byte) (value string, exist []clientv3.Cmp, err error) {
	if len(body) <= maxInline {
		return string(body), nil, nil
	}
	hash := sha256.Sum256(body)
	sum := hex.EncodeToString(hash[:])
	pieces := remotestore.Split(body, chunkSize)
	stored, err := c.listKeys(ctx, c.key("chunks", sum)+"/")
	if err != nil {
		return "", nil, err
	}
	for n, piece := range pieces {
		key := c.chunkKey(sum, n)
		exist = append(exist, clientv3.Compare(clientv3.CreateRevision(key), ">", 0))
		if stored[key] != 0 {
			continue
		}
		err := c.call(ctx, "store a part of the plan", writeTimeout, func(ctx context.Context, conn *clientv3.Client) error {
			_, err := conn.Put(ctx, key, string(piece))
			return err
		})
		if err != nil {
			return "", nil, err
		}
	}
	text, err := json.Marshal(pointer{&chunked{SHA256: sum, Size: len(body), Chunks: len(pieces)}})
	return string(text), exist, err
}

// listKeys returns the keys with a prefix, and the revision of the last change of each.
func (c *Client) listKeys(ctx context.Context, prefix string) (map[string]int64, error) {
	var keys map[string]int64
	err := c.call(ctx, "list "+prefix, readTimeout, func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(maxKeys))
		if err != nil {
			return err
		}
		if r.More {
			return fmt.Errorf("more than %d keys: only the control planes of one fleet may use this prefix", maxKeys)
		}
		keys = make(map[string]int64, len(r.Kvs))
		for _, kv := range r.Kvs {
			keys[string(kv.Key)] = kv.ModRevision
		}
		return nil
	})
	return keys, err
}

// maxKeys bounds a listing.
const maxKeys = 10_000

// getDocument returns a document as it was at a revision of etcd.
func (c *Client) getDocument(ctx context.Context, key string, revision int64) ([]byte, error) {
	value, err := c.getAt(ctx, key, revision)
	if err != nil {
		return nil, err
	}
	at, err := parsePointer(value)
	if err != nil {
		return nil, fmt.Errorf("etcd key %s: %w", key, err)
	}
	if at == nil {
		return value, nil
	}
	var body bytes.Buffer
	for n := range at.Chunks {
		piece, err := c.getAt(ctx, c.chunkKey(at.SHA256, n), revision)
		if err != nil {
			return nil, err
		}
		if body.Len()+len(piece) > at.Size {
			return nil, fmt.Errorf("etcd key %s: its chunks have more than %d bytes", key, at.Size)
		}
		body.Write(piece)
	}
	if sum := sha256.Sum256(body.Bytes()); hex.EncodeToString(sum[:]) != at.SHA256 {
		return nil, fmt.Errorf("etcd key %s: its chunks have another hash", key)
	}
	return body.Bytes(), nil
}

// errMissing says that a key that a document names does not exist.
var errMissing = errors.New("the key is missing")

// getAt returns a value as it was at a revision of etcd; 0 means now.
func (c *Client) getAt(ctx context.Context, key string, revision int64) (value []byte, err error) {
	err = c.call(ctx, "read "+key, readTimeout, func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Get(ctx, key, clientv3.WithRev(revision))
		if err == nil && len(r.Kvs) == 0 {
			err = errMissing
		}
		if err == nil {
			value = r.Kvs[0].Value
		}
		return err
	})
	return value, err
}

// version is a state of both documents: the revisions at which they changed last; 0: there
// is none.
type version struct{ plan, state int64 }

// String returns the form of a store.Version; "" without a plan.
func (v version) String() string {
	if v.plan == 0 {
		return ""
	}
	return strconv.FormatInt(v.plan, 10) + "." + strconv.FormatInt(v.state, 10)
}

// parseVersion is the inverse of String.
func parseVersion(text store.Version) (v version, ok bool) {
	if text == "" {
		return version{}, true
	}
	plan, state, ok := strings.Cut(string(text), ".")
	var errs [2]error
	v.plan, errs[0] = strconv.ParseInt(plan, 10, 64)
	v.state, errs[1] = strconv.ParseInt(state, 10, 64)
	return v, ok && errs == [2]error{} && v.plan > 0 && store.Version(v.String()) == text
}
