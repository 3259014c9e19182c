package kubernetes

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascadeinfer/cascade/xds/store"
)

// Annotations of the Lease.
const (
	planAnnotation  = "cascade/plan"     // a pointer
	stateAnnotation = "cascade/state"    // a document, or a pointer
	asideAnnotation = "cascade/corrupt-" // and a time: a pointer to a plan that was set aside
)

// Store is a store.Store in Kubernetes, for control planes on any number of hosts.
type Store struct {
	c           *Client
	beforeWrite func() // of tests, called before each write of the Lease; nil: none

	mu    sync.Mutex
	known root // as last written here or read
	last  swap // the last one that succeeded here
}

// root is a version of the Lease.
type root struct {
	lease *coordinationv1.Lease // not changed after it was read; nil: there is none
	// sum is of the plan that it names; zero where that is not known, or is known to be damaged.
	sum [sha256.Size]byte
}

// version returns the resourceVersion; "" without a plan.
func (r root) version() string {
	if r.lease == nil || r.lease.Annotations[planAnnotation] == "" {
		return ""
	}
	return r.lease.ResourceVersion
}

// swap is a CompareAndSwap that succeeded.
type swap struct {
	began time.Time // by the monotonic clock
	named []string  // the ConfigMaps that the root then named
}

var _ store.Store = (*Store)(nil)

// Plan returns the store of the plan object.
func (c *Client) Plan() *Store { return &Store{c: c} }

// Close closes the Client: the stores that came from it no longer work.
func (s *Store) Close() error { return s.c.Close() }

// isVersion reports whether a text has the form of a resourceVersion.
func isVersion(v store.Version) bool {
	n, err := strconv.ParseUint(string(v), 10, 64)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == string(v)
}

// CompareAndSwap implements store.Store. An object that cannot be read is not overwritten: the
// error says what is wrong with it.
func (s *Store) CompareAndSwap(ctx context.Context, old store.Version, object store.Object) (store.Version, error) {
	began := time.Now()
	if err := object.Validate(); err != nil {
		return "", fmt.Errorf("plan in kubernetes: %w", err)
	}
	if old != "" && !isVersion(old) {
		return "", s.conflict()
	}
	plan, state := object.Divide()
	planBody, err := store.Encode(plan, 0)
	if err != nil {
		return "", fmt.Errorf("plan in kubernetes: %w", err)
	}
	// The number makes the bytes of every write different from those of all others, so that a
	// write whose answer was lost is recognised.
	stateBody, err := store.Encode(state, 1+rand.Uint64N(1<<52))
	if err != nil {
		return "", fmt.Errorf("plan in kubernetes: state: %w", err)
	}
	from, err := s.rootAt(ctx, old)
	if err != nil {
		return "", err
	}
	next := s.nextLease(from.lease, object.Lease)
	sum := sha256.Sum256(planBody)
	if from.sum != sum {
		p, err := s.c.putDocument(ctx, planKind, planBody)
		if err != nil {
			return "", err
		}
		next.Annotations[planAnnotation] = p.annotation()
	} // else it stays as it is
	next.Annotations[stateAnnotation] = string(stateBody)
	if len(stateBody) > maxInline {
		p, err := s.c.putDocument(ctx, stateKind, stateBody)
		if err != nil {
			return "", err
		}
		next.Annotations[stateAnnotation] = p.annotation()
	}
	if s.beforeWrite != nil {
		s.beforeWrite()
	}
	stored, err := s.writeLease(ctx, next)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.last = root{stored, sum}, swap{began, s.c.namesOf(stored)}
	return store.Version(stored.ResourceVersion), nil
}

func (s *Store) conflict() error {
	return fmt.Errorf("kubernetes Lease %s/%s: %w", s.c.namespace, s.c.name, store.ErrConflict)
}

// rootAt returns the root that has a version.
func (s *Store) rootAt(ctx context.Context, v store.Version) (root, error) {
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if v != "" && known.version() == string(v) {
		return known, nil
	}
	lease, err := s.c.getLease(ctx)
	if err != nil {
		return root{}, err
	}
	r := root{lease: lease}
	if r.version() != string(v) {
		return root{}, s.conflictUnlessUnreadable(ctx)
	}
	return r, nil
}

// nextLease returns the Lease that replaces one, without the documents of this write. What
// others have added to its metadata stays.
func (s *Store) nextLease(from *coordinationv1.Lease, l store.Lease) *coordinationv1.Lease {
	next := &coordinationv1.Lease{ObjectMeta: s.c.meta(s.c.name, rootKind, "")}
	if from != nil {
		next = from.DeepCopy()
		next.ManagedFields = nil
		if next.Labels == nil {
			next.Labels = make(map[string]string)
		}
		for key, value := range s.c.labels(rootKind) {
			next.Labels[key] = value
		}
	}
	if next.Annotations == nil {
		next.Annotations = make(map[string]string)
	}
	// The spec is for people and tools. The lease that counts is in the state.
	spec, now := &next.Spec, time.Now()
	former, changes := "", int32(0)
	if spec.HolderIdentity != nil {
		former = *spec.HolderIdentity
	}
	if spec.LeaseTransitions != nil {
		changes = *spec.LeaseTransitions
	}
	if from != nil && l.Holder != "" && l.Holder != former {
		changes++
	}
	spec.LeaseTransitions, spec.HolderIdentity, spec.LeaseDurationSeconds, spec.RenewTime = &changes, nil, nil, nil
	if l.Holder != "" {
		spec.HolderIdentity, spec.RenewTime = &l.Holder, &metav1.MicroTime{Time: now}
		spec.LeaseDurationSeconds = new(int32(min(3600, max(1, l.Expires.Sub(now).Round(time.Second)/time.Second))))
	}
	return next
}

// writeLease creates or updates the Lease, and returns what is stored.
func (s *Store) writeLease(ctx context.Context, next *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	stored := &coordinationv1.Lease{}
	err := s.c.call(ctx, "store the plan: Lease "+next.Name, writeTimeout, func(ctx context.Context) error {
		if next.ResourceVersion == "" {
			return s.c.coordination.Post().Namespace(s.c.namespace).Resource(leases).Body(next).Do(ctx).Into(stored)
		}
		return s.c.coordination.Put().Namespace(s.c.namespace).Resource(leases).Name(next.Name).Body(next).Do(ctx).Into(stored)
	})
	switch {
	case err == nil:
		return stored, nil
	case apierrors.IsNotFound(err) && next.ResourceVersion == "":
		return nil, fmt.Errorf("%w: create the namespace first", err)
	case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
		return nil, err
	}
	lease, err := s.c.getLease(ctx)
	if err != nil {
		return nil, err
	}
	if written := next.Annotations[stateAnnotation]; lease != nil && written != "" && lease.Annotations[stateAnnotation] == written {
		return lease, nil // an attempt whose answer was lost had succeeded
	}
	return nil, s.conflictUnlessUnreadable(ctx)
}

// conflictUnlessUnreadable returns the error of a write that started from another version than the
// stored one: a conflict, or why the stored one cannot be read.
func (s *Store) conflictUnlessUnreadable(ctx context.Context) error {
	if _, err := s.read(ctx, content{}); err != nil {
		return err
	}
	return s.conflict()
}

// getLease returns the Lease; nil if there is none.
func (c *Client) getLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := c.call(ctx, "read the plan: Lease "+c.name, readTimeout, func(ctx context.Context) error {
		return c.coordination.Get().Namespace(c.namespace).Resource(leases).Name(c.name).Do(ctx).Into(lease)
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// namesOf returns the names of the ConfigMaps that a Lease names, also those of plans that were
// set aside.
func (c *Client) namesOf(lease *coordinationv1.Lease) (names []string) {
	for annotation, text := range lease.Annotations {
		kind := planKind
		switch {
		case annotation == stateAnnotation:
			kind = stateKind
		case annotation != planAnnotation && !strings.HasPrefix(annotation, asideAnnotation):
			continue
		}
		if p, err := parsePointer(text); err == nil && p != nil {
			names = append(names, c.partNames(kind, *p)...)
		}
	}
	return names
}

// content is what was read at once.
type content struct {
	root
	plan, state store.Object
}

func (c content) object() store.Object { return store.Join(c.plan, c.state) }

// readTries bounds how often a read begins again because what the root names was replaced and
// collected meanwhile.
const readTries = 3

// read returns what is stored, with the documents of have where they have not changed.
func (s *Store) read(ctx context.Context, have content) (content, error) {
	var got content
	var err error
	for range readTries {
		if got, err = s.readOnce(ctx, have); !errors.Is(err, errMissing) {
			break
		}
	}
	return got, err
}

func (s *Store) readOnce(ctx context.Context, have content) (content, error) {
	lease, err := s.c.getLease(ctx)
	if err != nil {
		return content{}, err
	}
	got := content{root: root{lease: lease}}
	if got.version() == "" {
		return content{}, nil
	}
	if got.version() == have.version() {
		return have, nil
	}
	same := func(annotation string) bool {
		return have.lease != nil && lease.Annotations[annotation] == have.lease.Annotations[annotation]
	}
	if got.plan, got.sum = have.plan, have.sum; !same(planAnnotation) {
		body, err := s.document(ctx, planKind, lease.Annotations[planAnnotation])
		if err == nil {
			got.plan, _, err = store.Decode(body)
		}
		if err != nil {
			return content{}, fmt.Errorf("kubernetes Lease %s/%s: annotation %s: %w", s.c.namespace, s.c.name, planAnnotation, err)
		}
		got.sum = sha256.Sum256(body)
	}
	switch text := lease.Annotations[stateAnnotation]; {
	case same(stateAnnotation):
		got.state = have.state
	case text != "":
		body, err := s.document(ctx, stateKind, text)
		if err == nil {
			got.state, _, err = store.Decode(body)
		}
		if err != nil {
			return content{}, fmt.Errorf("kubernetes Lease %s/%s: annotation %s, which the leader writes anew when it is removed: %w", s.c.namespace, s.c.name, stateAnnotation, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = got.root
	return got, nil
}

// document returns the document of an annotation.
func (s *Store) document(ctx context.Context, kind, annotation string) ([]byte, error) {
	p, err := parsePointer(annotation)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return []byte(annotation), nil
	}
	return s.c.getDocument(ctx, kind, *p)
}

// SetAside moves the reference to a plan that cannot be read to another annotation, whose name
// it returns, so that another plan can be stored in its place. Where only the state cannot be
// read, which the leader writes anew, it removes that and returns "".
func (s *Store) SetAside(ctx context.Context, now time.Time) (annotation string, err error) {
	lease, err := s.c.getLease(ctx)
	if err != nil || lease == nil {
		return "", err
	}
	body, err := s.document(ctx, planKind, lease.Annotations[planAnnotation])
	if err == nil {
		_, _, err = store.Decode(body)
	}
	if errors.Is(err, store.ErrUnavailable) {
		return "", err
	}
	next := lease.DeepCopy()
	if err == nil || lease.Annotations[planAnnotation] == "" {
		delete(next.Annotations, stateAnnotation)
	} else {
		annotation = asideAnnotation + now.UTC().Format("20060102T150405Z")
		next.Annotations[annotation] = next.Annotations[planAnnotation]
		delete(next.Annotations, planAnnotation)
		delete(next.Annotations, stateAnnotation)
	}
	if _, err = s.writeLease(ctx, next); err != nil {
		return "", err
	}
	return annotation, nil
}
