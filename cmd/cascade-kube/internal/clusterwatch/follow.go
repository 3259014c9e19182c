package clusterwatch

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
)

// listTimeout bounds one request for a page of a list.
const listTimeout = 30 * time.Second

// After a failure the next request comes after firstDelay, then later, up to maxDelay, each up to
// half as long again. client-go's own go up to a minute, in which a fleet would not follow its Pods.
const (
	firstDelay = 500 * time.Millisecond
	maxDelay   = 10 * time.Second
)

// resource is a kind of objects that are listed and watched.
type resource struct {
	what  string // for faults
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// restrict narrows what is read.
	restrict func(*metav1.ListOptions)
}

// follow lists and watches a resource into a store until ctx ends. It lists again after
// a watch that has expired (410), and waits longer after each failure, up to 15 s.
func (w *Watcher) follow(ctx context.Context, r resource, expected runtime.Object, into cache.ReflectorStore) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			r.restrict(&o)
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			list, err := r.list(ctx, o)
			w.noteRead(ctx, "list of "+r.what, err)
			return list, err
		},
		// A watch is unbounded in time; the connection's pings find a server that is gone.
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			r.restrict(&o)
			events, err := r.watch(ctx, o)
			w.noteRead(ctx, "watch of "+r.what, err)
			if err == nil && o.SendInitialEvents != nil && *o.SendInitialEvents {
				// Such a watch sends the list, too: after an outage client-go makes no other.
				w.noteRead(ctx, "list of "+r.what, nil)
			}
			return events, err
		},
	}
	// What fails is noted above; the reflector would log it each time. A zero Logger discards.
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, w.cfg.Client), expected, into, cache.ReflectorOptions{Name: r.what, Logger: &klog.Logger{},
		Backoff: &wait.Backoff{Duration: firstDelay, Cap: maxDelay, Factor: 2, Jitter: 0.5, Steps: 10}})
	reflector.RunWithContext(klog.NewContext(ctx, klog.Logger{}))
}

// noteRead notes how a request to the API server ended, unless Run ends.
func (w *Watcher) noteRead(ctx context.Context, what string, err error) {
	if err == nil || context.Cause(ctx) != context.Canceled {
		w.noteFault(what, err)
	}
}

// followSource follows the pool or the Service.
func (w *Watcher) followSource(ctx context.Context) {
	if w.cfg.Pool != "" {
		pools := w.cfg.Dynamic.Resource(poolResource).Namespace(w.cfg.Namespace)
		w.follow(ctx, resource{
			what:     "inferencepools",
			list:     func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pools.List(ctx, o) },
			watch:    pools.Watch,
			restrict: onlyNamed(w.cfg.Pool),
		}, nil, w.source)
		return
	}
	services := w.cfg.Client.CoreV1().Services(w.cfg.Namespace)
	w.follow(ctx, resource{
		what:     "services",
		list:     func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return services.List(ctx, o) },
		watch:    services.Watch,
		restrict: onlyNamed(w.cfg.Service),
	}, &corev1.Service{}, w.source)
}

func onlyNamed(name string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	}
}

// followSlices follows the EndpointSlices of the Service.
func (w *Watcher) followSlices(ctx context.Context) {
	slices := w.cfg.Client.DiscoveryV1().EndpointSlices(w.cfg.Namespace)
	w.follow(ctx, resource{
		what:     "endpointslices",
		list:     func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return slices.List(ctx, o) },
		watch:    slices.Watch,
		restrict: func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=" + w.cfg.Service },
	}, &discoveryv1.EndpointSlice{}, w.slices)
}

// selectorPoll is the time between two looks at the selector.
const selectorPoll = 250 * time.Millisecond

// followPods follows the Pods of the present selector until ctx ends. When the selector
// changes, the Pods of the former one count until those of the new one are listed.
func (w *Watcher) followPods(ctx context.Context) {
	ticker := time.NewTicker(selectorPoll)
	defer ticker.Stop()
	present, stop := "", func() {}
	defer func() { stop() }()
	for {
		if s := w.selection(); s.selector != present {
			stop()
			present, stop = s.selector, w.startPods(ctx, s)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// startPods follows the Pods of a selection until the function that it returns is called,
// which returns when that has ended.
func (w *Watcher) startPods(ctx context.Context, s selection) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var rows *table[discovery.Pod]
	rows = newTable(convertPod, func() {
		if rows.isListed() {
			w.mu.Lock()
			if w.pods != rows {
				w.pods, w.podsOf = rows, s
			}
			w.mu.Unlock()
			w.noteChange()
		}
	})
	pods := w.cfg.Client.CoreV1().Pods(w.cfg.Namespace)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.follow(ctx, resource{
			what:     "pods",
			list:     func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
			watch:    pods.Watch,
			restrict: func(o *metav1.ListOptions) { o.LabelSelector = s.selector },
		}, &corev1.Pod{}, rows)
	}()
	return func() { cancel(); <-done }
}
