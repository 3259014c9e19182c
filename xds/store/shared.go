package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Store keeps what the control planes of a fleet share, on a Backend.
type Store struct {
	backend Backend

	mu    sync.Mutex
	known content // as last written here or read, without its objects
	last  swap    // the last one that succeeded here

	notes   noteAges
	garbage garbage
}

// content is what was read at once.
type content struct {
	version     Version
	root        rootDocument
	plan, state Object
}

// object returns a copy of the object.
func (c content) object() Object {
	o := join(c.plan, c.state)
	o.Lease = c.root.Lease
	return o
}

// swap is a CompareAndSwap that succeeded.
type swap struct {
	version Version
	began   time.Time       // by the monotonic clock
	named   map[string]bool // the blobs that the root then named
}

var _ Plans = (*Store)(nil)

// New returns the Store on a backend.
func New(b Backend) *Store { return &Store{backend: b} }

// Close closes the backend. No call may follow.
func (s *Store) Close() error { return s.backend.Close() }

// String says where the plan is.
func (s *Store) String() string { return s.backend.String() }

// fail adds where the root is to an error that does not say it.
func (s *Store) fail(err error) error { return fmt.Errorf("%s: %w", s.backend, err) }

// CompareAndSwap implements Plans.
func (s *Store) CompareAndSwap(ctx context.Context, old Version, object Object) (Version, error) {
	began := time.Now()
	if err := object.Validate(); err != nil {
		return "", s.fail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	from, err := s.contentAt(ctx, old)
	if err != nil {
		return "", err
	}
	next, err := s.putObject(ctx, object, from.root.Plan)
	if err != nil {
		return "", err
	}
	return s.swapRoot(ctx, began, old, next)
}

// putObject stores an object, and returns its root. A plan that is stored stays as it is, so that a
// write that changes the state only, such as every renewal of the lease, writes no plan.
func (s *Store) putObject(ctx context.Context, object Object, stored part) (rootDocument, error) {
	root := rootDocument{Format: format, Write: newID(), Lease: object.Lease.inUTC()}
	plan, state := object.divide()
	planBody, err := encode(plan)
	if err != nil {
		return root, s.fail(err)
	}
	stateBody, err := encode(state)
	if err != nil {
		return root, s.fail(err)
	}
	limits := s.backend.Limits()
	if root.Plan = stored; stored.Stored == nil || stored.Stored.SHA256 != sumOf(planBody) {
		if root.Plan, err = s.putPart(ctx, planBody, limits.Plan); err != nil {
			return root, err
		}
	}
	root.State, err = s.putPart(ctx, stateBody, limits.State)
	return root, err
}

// swapRoot stores a root whose parts are stored.
func (s *Store) swapRoot(ctx context.Context, began time.Time, old Version, root rootDocument) (Version, error) {
	data, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return "", s.fail(err)
	}
	data = append(data, '\n')
	writing, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	v, err := s.backend.SwapRoot(writing, old, data)
	if errors.Is(err, ErrConflict) {
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		stored, e := s.backend.ReadRoot(reading)
		switch {
		case e != nil:
			return "", e
		case !bytes.Equal(stored.Data, data):
			return "", s.conflict(ctx)
		}
		v, err = stored.Version, nil // an attempt whose answer was lost had succeeded
	}
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.last = content{version: v, root: root}, swap{v, began, root.names()}
	return v, nil
}

// conflict returns the error of a write that started from another version than the stored one:
// ErrConflict, or why the stored one cannot be read.
func (s *Store) conflict(ctx context.Context) error {
	if _, err := s.read(ctx, content{}); err != nil {
		return err
	}
	return s.fail(ErrConflict)
}

// contentAt returns the root of a version.
func (s *Store) contentAt(ctx context.Context, v Version) (content, error) {
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if v == "" {
		return content{}, nil
	}
	if known.version == v {
		return known, nil
	}
	got, err := s.read(ctx, content{})
	if err == nil && got.version != v {
		err = s.fail(ErrConflict)
	}
	return got, err
}

// readTries bounds how often a read begins again because what the root names was replaced and
// collected meanwhile.
const readTries = 3

// read returns what is stored, with the objects of have where they have not changed.
func (s *Store) read(ctx context.Context, have content) (got content, err error) {
	for range readTries {
		if got, err = s.readOnce(ctx, have); !errors.Is(err, ErrNoBlob) {
			break
		}
	}
	return got, err
}

func (s *Store) readOnce(ctx context.Context, have content) (content, error) {
	root, err := s.backend.ReadRoot(ctx)
	if err != nil {
		return content{}, err
	}
	if root.Version == have.version || root.Version == "" {
		if root.Version == "" {
			have = content{}
		}
		return have, nil
	}
	got := content{version: root.Version}
	if got.root, err = decodeRoot(root.Data); err != nil {
		return content{}, s.fail(err)
	}
	if got.plan = have.plan; have.version == "" || !got.root.Plan.equal(have.root.Plan) {
		if got.plan, err = s.getPart(ctx, got.root.Plan); err != nil {
			return content{}, s.fail(fmt.Errorf("plan: %w", err))
		}
	}
	if got.state, err = s.getPart(ctx, got.root.State); err != nil {
		return got, s.fail(fmt.Errorf("state: %w", err))
	}
	if err := got.object().Validate(); err != nil {
		return content{}, s.fail(fmt.Errorf("%w: %w", ErrCorrupt, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = content{version: got.version, root: got.root}
	return got, nil
}

// Repair stores an object in the place of one that cannot be read, or of none, and returns the
// blob that keeps the unreadable root; "" if there was none. Where the plan can be read, and only
// the state cannot, it removes the state, which the leader writes anew, and returns "", too.
func (s *Store) Repair(ctx context.Context, now time.Time, object Object) (kept string, err error) {
	root, err := s.backend.ReadRoot(ctx)
	if err != nil {
		return "", err
	}
	if root.Version != "" {
		got, err := s.read(ctx, content{})
		switch {
		case err == nil:
			return "", s.fail(ErrConflict)
		case !errors.Is(err, ErrCorrupt):
			return "", err
		case got.version == root.Version && got.plan.Validate() == nil:
			object = got.plan
		default:
			name := now.UTC().Format("20060102t150405z")
			if err := s.backend.CreateBlob(ctx, Corrupt, name, root.Data); err != nil && !errors.Is(err, ErrExists) {
				return "", err
			}
			kept = Corrupt + "/" + name
		}
	}
	if err := object.Validate(); err != nil {
		return "", err
	}
	next, err := s.putObject(ctx, object, part{})
	if err == nil {
		_, err = s.swapRoot(ctx, time.Now(), root.Version, next)
	}
	return kept, err
}
