package clusterwatch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

const namespace = "llm"

// bubbles counts the clusters, each of which begins a day later.
var bubbles atomic.Int64

// cluster is a fake cluster with a running Watcher.
type cluster struct {
	t       *testing.T
	client  *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	w       *Watcher

	mu   sync.Mutex
	seen []discovery.Cluster // as delivered
}

func newCluster(t *testing.T, pool, service string) *cluster {
	c := &cluster{t: t, client: fake.NewClientset(), dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{poolResource: "InferencePoolList"})}
	// After an error client-go sleeps until its last error is past, which may be in another bubble or outside.
	time.Sleep(100*365*24*time.Hour + time.Duration(bubbles.Add(1))*24*time.Hour)
	var err error
	c.w, err = New(Config{Client: c.client, Dynamic: c.dynamic, Namespace: namespace, Pool: pool, Service: service})
	testkit.NoError(t, err)
	return c
}

// run runs the Watcher until the end of the test.
func (c *cluster) run() {
	testkit.Run(c.t, func(ctx context.Context) error {
		return c.w.Run(ctx, func(d discovery.Cluster) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.seen = append(c.seen, d)
		})
	})
}

// show waits for some seconds and returns the last delivery in one line.
func (c *cluster) show() string {
	time.Sleep(10 * time.Second)
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) == 0 {
		return "nothing"
	}
	d := c.seen[len(c.seen)-1]
	var words []string
	for _, p := range d.Pods {
		word := p.Name + "@" + p.IP
		if !p.Ready {
			word += " unready"
		}
		if p.Terminating {
			word += " terminating"
		}
		for k, v := range p.Settings {
			word += fmt.Sprintf(" %s=%s", k, v)
		}
		words = append(words, word)
	}
	for _, e := range d.Endpoints {
		words = append(words, fmt.Sprintf("endpoint %s:%d ready %v", e.PodUID, e.Port, e.Ready))
	}
	slices.Sort(words)
	return fmt.Sprintf("port %d: %s", d.Port, strings.Join(words, ", "))
}

func (c *cluster) expect(want string) {
	c.t.Helper()
	if got := c.show(); got != want {
		c.t.Errorf("got  %s\nwant %s", got, want)
	}
}

// expectFaults checks the faults of a source now: each matches its regular expression.
func expectFaults(t *testing.T, source interface{ Faults(time.Time) []string }, want ...string) {
	t.Helper()
	got := source.Faults(time.Now())
	matches := func(fault, pattern string) bool { return regexp.MustCompile(pattern).MatchString(fault) }
	if !slices.EqualFunc(got, want, matches) {
		t.Errorf("faults %q, want %q", got, want)
	}
}

func (c *cluster) deletePool(name string) {
	c.t.Helper()
	testkit.NoError(c.t, c.dynamic.Resource(poolResource).Namespace(namespace).Delete(c.t.Context(), name, metav1.DeleteOptions{}))
}

// failLists makes lists of Pods fail while the result is true.
func (c *cluster) failLists(why string) *atomic.Bool {
	failing := new(atomic.Bool)
	c.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return failing.Load(), nil, errors.New(why)
	})
	return failing
}

func pool(name, app string, port int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": map[string]any{"name": name, "namespace": namespace, "uid": "pool-" + name},
		"spec": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": app}}, "targetPorts": []any{map[string]any{"number": port}}},
	}}
}

func pod(name, app, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: "u-" + "x", Labels: map[string]string{"app": app}, Annotations: map[string]string{"other": "1"}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func (c *cluster) setPool(p *unstructured.Unstructured) {
	c.t.Helper()
	pools := c.dynamic.Resource(poolResource).Namespace(namespace)
	_, err := pools.Update(c.t.Context(), p, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = pools.Create(c.t.Context(), p, metav1.CreateOptions{})
	}
	testkit.NoError(c.t, err)
}

func (c *cluster) setPod(p *corev1.Pod) {
	c.t.Helper()
	pods := c.client.CoreV1().Pods(namespace)
	_, err := pods.Update(c.t.Context(), p, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = pods.Create(c.t.Context(), p, metav1.CreateOptions{})
	}
	testkit.NoError(c.t, err)
}

func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "vllm", "")
		c.setPod(pod("a", "vllm", "10.0.0.1"))
		c.setPod(pod("other", "web", "10.0.0.9"))
		c.setPool(pool("other", "web", 80))
		c.run()
		c.expect("nothing")
		expectFaults(t, c.w, "InferencePool llm/vllm: it does not exist")
		c.setPool(pool("vllm", "vllm", 9000))
		c.expect("port 9000: a@10.0.0.1")
		expectFaults(t, c.w)
		if r := c.w.Regarding(); r.UID != "pool-vllm" || r.Kind != "InferencePool" || r.APIVersion != "inference.networking.k8s.io/v1" || r.Namespace != namespace {
			t.Errorf("events are about %+v", r)
		}
		b := pod("b", "vllm", "10.0.0.2")
		b.Annotations[discovery.Prefix+"tp"] = "2"
		b.Status.Conditions[0].Status = corev1.ConditionFalse
		now := metav1.Now()
		b.DeletionTimestamp = &now
		c.setPod(b)
		c.expect("port 9000: a@10.0.0.1, b@10.0.0.2 unready terminating cascadeinfer.com/tp=2")
		testkit.NoError(t, c.client.CoreV1().Pods(namespace).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		c.expect("port 9000: b@10.0.0.2 unready terminating cascadeinfer.com/tp=2")
	})
}

func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "", "vllm")
		services, slices := c.client.CoreV1().Services(namespace), c.client.DiscoveryV1().EndpointSlices(namespace)
		_, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm", UID: "svc"}}, metav1.CreateOptions{})
		testkit.NoError(t, err)
		c.setPod(pod("a", "vllm", "10.0.0.1"))
		port, yes, no, name := int32(9000), true, false, portName
		target := &corev1.ObjectReference{Kind: "Pod", Name: "a", UID: "u-x"}
		slice := func(name string, ports []discoveryv1.EndpointPort, ready *bool) *discoveryv1.EndpointSlice {
			return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "vllm"}}, Ports: ports,
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, TargetRef: target, Conditions: discoveryv1.EndpointConditions{Ready: ready}}, {Addresses: []string{"192.0.2.1"}}}}
		}
		other := slice("other", []discoveryv1.EndpointPort{{Port: &port}}, nil)
		other.Labels[discoveryv1.LabelServiceName] = "web"
		_, err = slices.Create(t.Context(), other, metav1.CreateOptions{})
		testkit.NoError(t, err)
		c.run()
		c.expect("nothing")
		expectFaults(t, c.w, "its selector is empty")
		_, err = services.Update(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm", UID: "svc"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "vllm"}}}, metav1.UpdateOptions{})
		testkit.NoError(t, err)
		c.expect("port 0: a@10.0.0.1")
		_, err = slices.Create(t.Context(), slice("s1", []discoveryv1.EndpointPort{{Port: &port}}, nil), metav1.CreateOptions{})
		testkit.NoError(t, err)
		c.expect("port 0: a@10.0.0.1, endpoint u-x:9000 ready true")
		_, err = slices.Update(t.Context(), slice("s1", []discoveryv1.EndpointPort{{Port: &port, Name: &name}, {}}, &no), metav1.UpdateOptions{})
		testkit.NoError(t, err)
		c.expect("port 0: a@10.0.0.1, endpoint u-x:9000 ready false")
		_, err = slices.Update(t.Context(), slice("s1", []discoveryv1.EndpointPort{{Port: &port}, {Port: &port}}, &yes), metav1.UpdateOptions{})
		testkit.NoError(t, err)
		c.expect("port 0: a@10.0.0.1, endpoint u-x:0 ready true")

		// The Service is deleted, and its slices after it, one by one: the last state stays.
		_, err = slices.Create(t.Context(), slice("s2", []discoveryv1.EndpointPort{{Port: &port}}, &yes), metav1.CreateOptions{})
		testkit.NoError(t, err)
		const last = "port 0: a@10.0.0.1, endpoint u-x:0 ready true, endpoint u-x:9000 ready true"
		c.expect(last)
		testkit.NoError(t, services.Delete(t.Context(), "vllm", metav1.DeleteOptions{}))
		for _, name := range []string{"s1", "s2"} {
			testkit.NoError(t, slices.Delete(t.Context(), name, metav1.DeleteOptions{}))
			c.expect(last)
		}
		_, err = services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm", UID: "svc2"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "vllm"}}}, metav1.CreateOptions{})
		testkit.NoError(t, err)
		c.expect("port 0: a@10.0.0.1")
	})
}

// TestOutage checks that the last state stays while the API server is away, that this is a fault,
// and that what has changed meanwhile is delivered afterwards.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "vllm", "")
		c.setPool(pool("vllm", "vllm", 9000))
		c.setPod(pod("a", "vllm", "10.0.0.1"))
		away := c.failLists("connection refused")
		var current atomic.Pointer[watch.RaceFreeFakeWatcher]
		c.client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			if away.Load() {
				return true, nil, &url.Error{Op: "Get", URL: "https://secret/long", Err: errors.New("connection refused")}
			}
			w := watch.NewRaceFreeFake()
			current.Store(w)
			return true, w, nil
		})
		c.run()
		c.expect("port 9000: a@10.0.0.1")

		// A watch that has expired: what it missed is listed.
		c.setPod(pod("b", "vllm", "10.0.0.2"))
		c.expect("port 9000: a@10.0.0.1") // the watch of this test sends nothing
		current.Load().Error(&apierrors.NewResourceExpired("too old").ErrStatus)
		c.expect("port 9000: a@10.0.0.1, b@10.0.0.2")

		away.Store(true)
		deliveries := len(c.seen)
		current.Load().Stop()
		c.setPod(pod("c", "vllm", "10.0.0.3"))
		time.Sleep(5 * time.Minute)
		c.expect("port 9000: a@10.0.0.1, b@10.0.0.2")
		expectFaults(t, c.w, "list of pods: connection refused \\(for 5m", "watch of pods: connection refused \\(for 5m")
		if len(c.seen) != deliveries {
			t.Errorf("%d deliveries without a change", len(c.seen)-deliveries)
		}
		away.Store(false)
		time.Sleep(2 * maxDelay)
		c.expect("port 9000: a@10.0.0.1, b@10.0.0.2, c@10.0.0.3")
		expectFaults(t, c.w)
	})
}

// TestOutageOfWatchLists checks that with an API server whose watches send the list, no fault is left after an
// outage in which lists failed, too: no further list is made.
func TestOutageOfWatchLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "vllm", "")
		var err error
		// The embedded interface hides that the fake has no such watches.
		c.w, err = New(Config{Client: struct{ kubernetes.Interface }{c.client}, Dynamic: c.dynamic, Namespace: namespace, Pool: "vllm"})
		testkit.NoError(t, err)
		watchList := func(current *atomic.Pointer[watch.RaceFreeFakeWatcher], away *atomic.Bool, object, bookmark runtime.Object) clienttesting.WatchReactionFunc {
			return func(a clienttesting.Action) (bool, watch.Interface, error) {
				if away.Load() {
					return true, nil, errors.New("timeout")
				}
				w := watch.NewRaceFreeFake()
				if initial := a.(clienttesting.WatchActionImpl).ListOptions.SendInitialEvents; initial != nil && *initial {
					w.Add(object)
					w.Action(watch.Bookmark, bookmark)
				}
				current.Store(w)
				return true, w, nil
			}
		}
		ended := map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		listed := &unstructured.Unstructured{Object: map[string]any{}}
		listed.SetAPIVersion("inference.networking.k8s.io/v1")
		listed.SetKind("InferencePool")
		listed.SetAnnotations(ended)
		listed.SetResourceVersion("1")
		var away, never atomic.Bool
		var pods, pools atomic.Pointer[watch.RaceFreeFakeWatcher]
		c.dynamic.PrependWatchReactor("inferencepools", watchList(&pools, &never, pool("vllm", "vllm", 9000), listed))
		c.client.PrependWatchReactor("pods", watchList(&pods, &away, pod("a", "vllm", "10.0.0.1"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: ended, ResourceVersion: "1"}}))
		var lists atomic.Int64
		c.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			lists.Add(1)
			return true, nil, errors.New("timeout")
		})
		c.run()
		c.expect("port 9000: a@10.0.0.1")
		if n := lists.Load(); n != 0 {
			t.Errorf("%d lists, although the watch has sent it", n)
		}
		away.Store(true)
		pods.Load().Stop()
		time.Sleep(5 * time.Minute)
		expectFaults(t, c.w, "list of pods", "watch of pods")
		away.Store(false)
		time.Sleep(2 * maxDelay)
		c.expect("port 9000: a@10.0.0.1")
		expectFaults(t, c.w)
	})
}

// TestWatchForbidden checks that Pods which may be listed and not watched are read all the same, and that
// the fault stays while lists succeed.
func TestWatchForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "vllm", "")
		c.setPool(pool("vllm", "vllm", 9000))
		c.setPod(pod("a", "vllm", "10.0.0.1"))
		c.client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, nil, errors.New("forbidden" + strings.Repeat("é", maxFault)) // it may be as long as what an object contains
		})
		c.run()
		c.expect("port 9000: a@10.0.0.1")
		c.setPod(pod("b", "vllm", "10.0.0.2"))
		time.Sleep(5 * time.Minute)
		c.expect("port 9000: a@10.0.0.1, b@10.0.0.2")
		expectFaults(t, c.w, `^watch of pods: forbidden.* \(for 5m`)
		if n := len(c.w.Faults(time.Now())[0]); n > maxFault+100 {
			t.Errorf("a fault of %d bytes", n)
		}
	})
}

func TestConfig(t *testing.T) {
	client, pools := fake.NewClientset(), dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	for want, c := range map[string]Config{
		"Client is required":     {Namespace: "a", Pool: "b"},
		"Namespace is required":  {Client: client, Service: "b"},
		"either Pool or Service": {Client: client, Namespace: "a", Pool: "b", Service: "c", Dynamic: pools},
		"set either":             {Client: client, Namespace: "a"},
		"Dynamic is required":    {Client: client, Namespace: "a", Pool: "b"},
	} {
		_, err := New(c)
		testkit.WantError(t, err, want)
	}
}
