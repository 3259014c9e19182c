package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cascadeinfer/cascade/xds/store"
)

// Store is a store.Store in etcd, for control planes on any number of hosts.
type Store struct {
	c          *Client
	beforeSwap func() // of tests, called before each transaction; nil: none

	mu    sync.Mutex
	known planSum // of the plan last written here or read
}

// planSum identifies the content of the plan document at a revision, so that a write that
// changes the state only, such as every renewal of the lease, does not write the plan.
type planSum struct {
	revision int64 // 0: none
	sum      [sha256.Size]byte
}

var _ store.Store = (*Store)(nil)

// Plan returns the store of the plan object.
func (c *Client) Plan() *Store { return &Store{c: c} }

// Close closes the Client: the stores that came from it no longer work.
func (s *Store) Close() error { return s.c.Close() }

const (
	planName  = "plan"
	stateName = "state"
	// swapTries bounds how often the chunks of a document are written anew because they
	// were collected before a document named them.
	swapTries = 3
)

// errCollected says that a chunk was removed before a document named it.
var errCollected = errors.New("its parts were removed meanwhile")

// CompareAndSwap implements store.Store. An object that cannot be read is not overwritten:
// the error says what is wrong with it.
func (s *Store) CompareAndSwap(ctx context.Context, old store.Version, object store.Object) (store.Version, error) {
	if err := object.Validate(); err != nil {
		return "", fmt.Errorf("plan in etcd: %w", err)
	}
	from, ok := parseVersion(old)
	if !ok {
		return "", s.conflict()
	}
	plan, state := object.Divide()
	planBody, err := store.Encode(plan, 0)
	if err != nil {
		return "", fmt.Errorf("plan in etcd: %w", err)
	}
	// The number makes the bytes of every write different from those of all others, so that
	// a write whose answer was lost is recognised.
	stateBody, err := store.Encode(state, 1+rand.Uint64N(1<<52))
	if err != nil {
		return "", fmt.Errorf("plan in etcd: state: %w", err)
	}
	sum := sha256.Sum256(planBody)
	if s.isKnown(planSum{from.plan, sum}) {
		planBody = nil // it stays as it is
	}
	for range swapTries {
		var v version
		v, err = s.swap(ctx, from, planBody, stateBody)
		if err == nil {
			s.learn(planSum{v.plan, sum})
			return store.Version(v.String()), nil
		}
		if !errors.Is(err, errCollected) {
			break
		}
	}
	return "", err
}

func (s *Store) conflict() error {
	return fmt.Errorf("etcd key %s: %w", s.c.key(planName), store.ErrConflict)
}

func (s *Store) isKnown(p planSum) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.revision != 0 && p == s.known
}

func (s *Store) learn(p planSum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = p
}

// swap stores the documents if the stored ones have a version. No plan leaves the stored one.
func (s *Store) swap(ctx context.Context, from version, plan, state []byte) (version, error) {
	planKey, stateKey := s.c.key(planName), s.c.key(stateName)
	stateValue, conditions, err := s.c.putDocument(ctx, state)
	if err != nil {
		return version{}, err
	}
	puts := []clientv3.Op{clientv3.OpPut(stateKey, stateValue)}
	if plan != nil {
		value, exist, err := s.c.putDocument(ctx, plan)
		if err != nil {
			return version{}, err
		}
		puts, conditions = append(puts, clientv3.OpPut(planKey, value)), append(conditions, exist...)
	}
	conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(planKey), "=", from.plan))
	if from.plan != 0 { // without a plan, a state is left over from a plan that was removed
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(stateKey), "=", from.state))
	}
	if s.beforeSwap != nil {
		s.beforeSwap()
	}
	var r *clientv3.TxnResponse
	err = s.c.call(ctx, "store the plan", writeTimeout, func(ctx context.Context, conn *clientv3.Client) (err error) {
		r, err = conn.Txn(ctx).If(conditions...).Then(puts...).
			Else(clientv3.OpGet(planKey, clientv3.WithKeysOnly()), clientv3.OpGet(stateKey)).Commit()
		return err
	})
	switch {
	case err != nil:
		return version{}, err
	case r.Succeeded:
		return from.next(r.Header.Revision, plan != nil), nil
	}
	var stored version
	if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		stored.plan = kvs[0].ModRevision
	}
	if kvs := r.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		if stored.state = kvs[0].ModRevision; string(kvs[0].Value) == stateValue {
			// An attempt whose answer was lost had succeeded.
			return from.next(stored.state, plan != nil), nil
		}
	}
	if stored.plan == from.plan && (from.plan == 0 || stored.state == from.state) {
		return version{}, fmt.Errorf("etcd key %s: %w", planKey, errCollected)
	}
	if _, err := s.read(ctx, content{}); err != nil {
		return version{}, err
	}
	return version{}, s.conflict()
}

// next returns the version after a write at a revision.
func (v version) next(revision int64, plan bool) version {
	v.state = revision
	if plan {
		v.plan = revision
	}
	return v
}

// content is what was read at once.
type content struct {
	version
	plan, state store.Object
}

func (c content) object() store.Object { return store.Join(c.plan, c.state) }

// readTries bounds how often a read begins again because etcd has compacted the revision
// that it began with.
const readTries = 3

// read returns what is stored, with the documents of have where they have not changed.
func (s *Store) read(ctx context.Context, have content) (content, error) {
	var got content
	var err error
	for range readTries {
		if got, err = s.readOnce(ctx, have); !isCompacted(err) {
			return got, err
		}
	}
	return got, err
}

func (s *Store) readOnce(ctx context.Context, have content) (content, error) {
	var r *clientv3.TxnResponse
	planKey, stateKey := s.c.key(planName), s.c.key(stateName)
	err := s.c.call(ctx, "read the plan", readTimeout, func(ctx context.Context, conn *clientv3.Client) (err error) {
		r, err = conn.Txn(ctx).Then(clientv3.OpGet(planKey, clientv3.WithKeysOnly()), clientv3.OpGet(stateKey, clientv3.WithKeysOnly())).Commit()
		return err
	})
	if err != nil {
		return content{}, err
	}
	var v version
	if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		v.plan = kvs[0].ModRevision
	}
	if kvs := r.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		v.state = kvs[0].ModRevision
	}
	got := content{version: v}
	switch {
	case v.plan == 0:
		return content{}, nil
	case v.plan == have.version.plan:
		got.plan = have.plan
	default:
		body, err := s.c.getDocument(ctx, planKey, r.Header.Revision)
		if err != nil {
			return content{}, err
		}
		if got.plan, _, err = store.Decode(body); err != nil {
			return content{}, fmt.Errorf("etcd key %s: %w", planKey, err)
		}
		s.learn(planSum{v.plan, sha256.Sum256(body)})
	}
	switch {
	case v.state == 0:
	case v.state == have.version.state:
		got.state = have.state
	default:
		body, err := s.c.getDocument(ctx, stateKey, r.Header.Revision)
		if err != nil {
			return content{}, err
		}
		if got.state, _, err = store.Decode(body); err != nil {
			return content{}, fmt.Errorf("etcd key %s, which the leader writes anew when it is removed: %w", stateKey, err)
		}
	}
	return got, nil
}

// SetAside moves a plan that cannot be read to another key, whose name it returns, so that
// another one can be stored in its place. Chunks that the plan names are not kept. Where only
// the state cannot be read, which the leader writes anew, it removes that and returns "".
func (s *Store) SetAside(ctx context.Context, now time.Time) (key string, err error) {
	from, kept := s.c.key(planName), s.c.key("corrupt", now.UTC().Format("20060102T150405Z"))
	_, err = s.c.getAt(ctx, from, 0)
	none := errors.Is(err, errMissing) // no plan at all; a chunk that is missing makes one unreadable
	if err == nil {
		var body []byte
		if body, err = s.c.getDocument(ctx, from, 0); err == nil {
			_, _, err = store.Decode(body)
		}
	}
	if errors.Is(err, store.ErrUnavailable) {
		return "", err
	}
	if err == nil || none {
		from, kept = s.c.key(stateName), ""
	}
	err = s.c.call(ctx, "set the unreadable plan aside", writeTimeout, func(ctx context.Context, conn *clientv3.Client) error {
		r, err := conn.Get(ctx, from)
		if err != nil || len(r.Kvs) == 0 {
			return err
		}
		ops := []clientv3.Op{clientv3.OpDelete(from)}
		if kept != "" {
			ops = append(ops, clientv3.OpPut(kept, string(r.Kvs[0].Value)))
		}
		done, err := conn.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(from), "=", r.Kvs[0].ModRevision)).Then(ops...).Commit()
		if err == nil && !done.Succeeded {
			err = store.ErrConflict
		}
		return err
	})
	return kept, err
}
