// Package clusterwatch reads from a Kubernetes API server what a fleet's replicas are
// decided from, and follows it: an InferencePool, or a Service with its EndpointSlices,
// and the Pods that it selects. It also writes Events to that object.
//
// New checks the configuration, Run follows the cluster until its context ends, and
// calls its argument with what it has read whenever something changes.
//
// Invariants: Run never delivers a part of a list, so that a Pod is missing only if the
// API server did not list it. While the API server is away, or the selecting object is
// gone (see Config.ForgetDeleted) or bad, the last state stays and Faults says what is wrong.
// Of each object only what decisions need is kept in memory.
package clusterwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/cleantext"
)

// settle is how long changes are collected before they are delivered: a Deployment that
// scales changes many Pods at once.
const settle = 100 * time.Millisecond

// Config is the configuration of a Watcher.
type Config struct {
	// Client reads Services, EndpointSlices and Pods. Required.
	Client kubernetes.Interface
	// Dynamic reads InferencePools. Required with Pool.
	Dynamic dynamic.Interface
	// Namespace is that of all objects. Required.
	Namespace string
	// Pool or Service names the object that selects the Pods: an InferencePool
	// (inference.networking.k8s.io/v1) or a Service. Exactly one must be set.
	Pool, Service string
	// ForgetDeleted delivers a Cluster without Pods while the object that selects them is deleted,
	// or is being deleted, and until the next object of its name is good and its Pods are listed.
	// Otherwise the last Pods stay, and are followed.
	ForgetDeleted bool
	Logger        *slog.Logger // nil discards
}

func (c Config) validate() error {
	switch {
	case c.Client == nil:
		return errors.New("clusterwatch: Client is required")
	case c.Namespace == "":
		return errors.New("clusterwatch: Namespace is required")
	case (c.Pool == "") == (c.Service == ""):
		return errors.New("clusterwatch: set either Pool or Service")
	case c.Pool != "" && c.Dynamic == nil:
		return errors.New("clusterwatch: Dynamic is required with Pool")
	}
	return nil
}

// Watcher follows the objects of one fleet.
type Watcher struct {
	cfg     Config
	log     *slog.Logger
	changed chan struct{} // capacity 1: something is not delivered yet

	source *table[selection] // the pool or the Service
	slices *table[[]discovery.Endpoint]

	mu       sync.Mutex
	selected selection             // the last good one of source; guarded by mu
	gone     bool                  // there is no object of the name; guarded by mu
	deleted  bool                  // the object of selected is gone, is being deleted, or another one has its name; guarded by mu
	pods     *table[discovery.Pod] // those of podsOf; nil: none listed yet; guarded by mu
	podsOf   selection             // the former selection until the Pods of selected are listed; guarded by mu
	// endpoints are those of a Service when it was last there: its slices are deleted after it, one by one;
	// guarded by mu.
	endpoints []discovery.Endpoint
	faults    map[string]sourceFault // by the kind of the object that cannot be read; guarded by mu
}

// sourceFault is why something cannot be read.
type sourceFault struct {
	text   string
	since  time.Time
	effect string // as logged
}

// New returns a Watcher. Nothing runs before Run.
func New(cfg Config) (*Watcher, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Watcher{cfg: cfg, log: cfg.Logger, changed: make(chan struct{}, 1), faults: make(map[string]sourceFault)}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.source = newTable(w.convertSource, w.noteChange)
	w.slices = newTable(convertSlice, w.noteChange)
	return w, nil
}

// String names the object that selects the Pods.
func (w *Watcher) String() string {
	if w.cfg.Pool != "" {
		return "InferencePool " + w.cfg.Namespace + "/" + w.cfg.Pool
	}
	return "Service " + w.cfg.Namespace + "/" + w.cfg.Service
}

// Regarding returns the object that selects the Pods, as Events refer to it. Its UID is
// "" before it was read.
func (w *Watcher) Regarding() corev1.ObjectReference {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cfg.Pool != "" {
		return corev1.ObjectReference{APIVersion: poolResource.GroupVersion().String(), Kind: "InferencePool", Namespace: w.cfg.Namespace, Name: w.cfg.Pool, UID: w.selected.uid}
	}
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: w.cfg.Namespace, Name: w.cfg.Service, UID: w.selected.uid}
}

// noteChange makes Run deliver.
func (w *Watcher) noteChange() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Faults returns what cannot be read, since when, and what is delivered meanwhile, sorted; none if all is well.
func (w *Watcher) Faults(now time.Time) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(w.faults)) {
		f := w.faults[what]
		out = append(out, fmt.Sprintf("%s: %s (for %v; %s)", what, f.text, now.Sub(f.since).Round(time.Second), w.effectLocked()))
	}
	return out
}

// forgetsLocked reports whether no Pods are delivered, because those that were listed last are of an object that is gone.
func (w *Watcher) forgetsLocked() bool {
	replaced := w.podsOf.uid != w.selected.uid && w.podsOf.selector != w.selected.selector
	return w.cfg.ForgetDeleted && (w.deleted || replaced)
}

// effectLocked returns what is delivered while something cannot be read.
func (w *Watcher) effectLocked() string {
	if w.forgetsLocked() {
		return "no endpoints"
	}
	return "the last state stays"
}

// noteFault records why something cannot be read; a nil error ends that. It logs the first
// error, another effect and the end; Faults has the last error.
func (w *Watcher) noteFault(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, failed := w.faults[what]
	switch {
	case err == nil && failed:
		delete(w.faults, what)
		w.log.Info("cluster is read again", "what", what, "after", time.Since(was.since).Round(time.Millisecond))
	case err == nil:
	default:
		var request *url.Error // its text begins with the whole URL
		if errors.As(err, &request) {
			err = request.Err
		}
		text := cleantext.Truncate(err.Error(), maxFault)
		if !failed {
			was.since = time.Now()
		}
		if effect := w.effectLocked(); effect != was.effect {
			w.log.Warn("reading the cluster failed", "what", what, "error", text, "effect", effect)
			was.effect = effect
		}
		was.text = text
		w.faults[what] = was
	}
}

// maxFault bounds the text of a fault: it may contain what an object contains.
const maxFault = 512

// Run follows the cluster until ctx ends, and then returns nil. It calls apply from one
// goroutine, first when everything was listed.
func (w *Watcher) Run(ctx context.Context, apply func(discovery.Cluster)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { w.followSource(ctx); return nil })
	g.Go(func() error { w.followPods(ctx); return nil })
	if w.cfg.Service != "" {
		g.Go(func() error { w.followSlices(ctx); return nil })
	}
	g.Go(func() error { w.deliver(ctx, apply); return nil })
	return g.Wait()
}

// deliver calls apply after changes, until ctx ends.
func (w *Watcher) deliver(ctx context.Context, apply func(discovery.Cluster)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		}
		w.selectSource()
		timer := time.NewTimer(settle)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		// What came meanwhile is delivered now.
		select {
		case <-w.changed:
			w.selectSource()
		default:
		}
		if c, ok := w.cluster(); ok {
			apply(c)
		}
	}
}

// cluster returns what was read; ok is false before everything was listed.
func (w *Watcher) cluster() (discovery.Cluster, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		return discovery.Cluster{}, false
	}
	if w.forgetsLocked() {
		return discovery.Cluster{Source: w.String()}, true
	}
	// The Pods of a former selector listen on the former port.
	if w.podsOf.selector == w.selected.selector {
		w.podsOf = w.selected
	}
	c := discovery.Cluster{Source: w.String(), Port: w.podsOf.port, PoolPorts: w.podsOf.ports}
	c.Pods, _ = w.pods.rowsIfListed()
	if w.cfg.Service == "" {
		return c, true
	}
	perSlice, ok := w.slices.rowsIfListed()
	if !w.gone {
		w.endpoints = slices.Concat(perSlice...)
	}
	c.ByEndpoints, c.Endpoints = true, w.endpoints
	return c, ok
}

// selectSource takes over the pool or Service as read, unless it is gone or bad.
func (w *Watcher) selectSource() {
	rows, listed := w.source.rowsIfListed()
	if listed {
		w.mu.Lock()
		w.gone = len(rows) == 0
		w.deleted = w.gone || rows[0].deleting || rows[0].err != nil && rows[0].uid != w.selected.uid
		w.mu.Unlock()
	}
	switch {
	case !listed:
	case len(rows) == 0:
		w.noteFault(w.String(), errors.New("it does not exist: create it, or name another one"))
	case rows[0].deleting && w.cfg.ForgetDeleted:
		w.noteFault(w.String(), errors.New("it is being deleted: create it again, or name another one"))
	case rows[0].err != nil:
		w.noteFault(w.String(), rows[0].err)
	default:
		w.noteFault(w.String(), nil)
		w.mu.Lock()
		w.selected = rows[0]
		w.mu.Unlock()
	}
}

// selection returns what selects the Pods; its selector is "" before it is known.
func (w *Watcher) selection() selection {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.selected
}
