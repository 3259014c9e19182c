package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// recorder starts Pods that do nothing, and records which run, and what Services lead to.
type recorder struct {
	mu     sync.Mutex
	pods   map[string]Pod // by name; guarded by mu
	last   netip.Addr     // guarded by mu
	served []Service      // guarded by mu
}

func newRecorder() *recorder {
	return &recorder{pods: map[string]Pod{}, last: netip.MustParseAddr("10.9.0.1")}
}

func (r *recorder) start(_ context.Context, p Pod) (func(), error) {
	if p.Spec.Containers[0].Image == "bad" {
		return nil, errors.New("there is no such image")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods[p.Name] = p
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.pods, p.Name)
	}, nil
}

func (r *recorder) address() (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = r.last.Next()
	return r.last, nil
}

func (r *recorder) serve(all []Service) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served = all
	return nil
}

// endpoints returns what a Service leads to.
func (r *recorder) endpoints(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.served {
		if s.Name == name {
			return fmt.Sprint(s.Endpoints)
		}
	}
	return "none"
}

// running returns the Pods that run, by name.
func (r *recorder) running() (out []Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pods {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (r *recorder) names() (out []string) {
	for _, p := range r.running() {
		out = append(out, p.Name)
	}
	return out
}

const (
	workloadText = `{"apiVersion": "apps/v1", "kind": %q, "metadata": {"name": "d", "namespace": "default"}, "spec": {"replicas": %d, "selector": {"matchLabels": {"app": "a"}},
	"template": {"metadata": {"labels": {"app": "a"}}, "spec": {"terminationGracePeriodSeconds": 130, "containers": [{"name": "c", "image": %q, "args": ["--ip=$(IP)", "$(UNKNOWN)"],
		"env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, {"name": "N", "value": "v"}],
		"ports": [{"name": "web", "containerPort": 3000}], "volumeMounts": [{"name": "m", "mountPath": "/config"}]}], "volumes": [{"name": "m", "configMap": {"name": "m"}}]}}}}`
	configText  = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}, "data": {"f.yaml": "text"}}`
	serviceText = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "default"}, "spec": {"type": "LoadBalancer", "selector": {"app": %q},
	"ports": [{"name": "one", "port": 80, "targetPort": "web"}, {"name": "two", "port": 9002, "targetPort": 9003}]}}`
)

// world is a Cluster on a real API server, whose Pods are recorded.
type world struct {
	*recorder
	cluster *Cluster
	t       *testing.T
	client  kubernetes.Interface
	stop    func()
}

func newWorld(t *testing.T) *world {
	testkit.SkipSlow(t)
	server := kubetest.Start(t)
	w := &world{recorder: newRecorder(), t: t, client: testkit.Must(kubernetes.NewForConfig(ClientConfig(server)))}
	w.cluster = testkit.Must(New(Config{Client: w.client, RunPod: RunStarted(w.start), Address: w.address, Host: netip.MustParseAddr("10.9.0.1"), Serve: w.serve}))
	w.stop = testkit.Run(t, w.cluster.Run)
	w.apply("/api/v1/namespaces/default/configmaps/m", configText)
	return w
}

func (w *world) apply(path, text string) {
	w.t.Helper()
	testkit.NoError(w.t, w.client.CoreV1().RESTClient().Patch(apitypes.ApplyPatchType).AbsPath(path).Param("fieldManager", "test").Param("force", "true").Body([]byte(text)).Do(w.t.Context()).Error())
}

// createPod creates a Pod without a workload and without a node.
func (w *world) createPod(name, image string) {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
	testkit.Must(w.client.CoreV1().Pods("default").Create(w.t.Context(), p, metav1.CreateOptions{}))
}

// slices returns the EndpointSlices of the Service "s".
func (w *world) slices() []discoveryv1.EndpointSlice {
	w.t.Helper()
	l, err := w.client.DiscoveryV1().EndpointSlices("default").List(w.t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=s"})
	testkit.NoError(w.t, err)
	return l.Items
}

// ready returns the addresses and ports in the EndpointSlices of the Service "s" that take connections.
func (w *world) ready() (out []string) {
	w.t.Helper()
	for _, s := range w.slices() {
		for _, e := range s.Endpoints {
			text := fmt.Sprint(e.Addresses)
			for _, p := range s.Ports {
				text += fmt.Sprint(" ", *p.Port)
			}
			if *e.Conditions.Ready {
				out = append(out, text)
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestDeployment follows a Deployment and its Service.
func TestDeployment(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	const path = "/apis/apps/v1/namespaces/default/deployments/d"
	w.apply("/api/v1/namespaces/default/services/s", fmt.Sprintf(serviceText, "a"))
	w.apply(path, fmt.Sprintf(workloadText, "Deployment", 2, "good"))
	testkit.WaitForValue(t, "endpoints", w.ready, func(e []string) bool {
		return slices.Equal(e, []string{"[10.9.0.2] 3000 9003", "[10.9.0.3] 3000 9003"})
	})
	testkit.WaitForValue(t, "the Service to be served", func() string { return w.endpoints("s") }, func(e string) bool {
		return e == "map[one:[10.9.0.2:3000 10.9.0.3:3000] two:[10.9.0.2:9003 10.9.0.3:9003]]" || e == "map[one:[10.9.0.3:3000 10.9.0.2:3000] two:[10.9.0.3:9003 10.9.0.2:9003]]"
	})
	nodes := map[string]bool{}
	for _, p := range w.running() {
		nodes[p.Spec.NodeName] = true
		c, err := p.Resolve(&p.Spec.Containers[0])
		testkit.NoError(t, err)
		files, err := p.VolumeFiles(ctx, Source{Client: w.client}, &p.Spec.Volumes[0])
		testkit.NoError(t, err)
		if ip, _ := c.Lookup("IP"); ip != p.IP.String() || fmt.Sprint(c.Args) != "[--ip="+ip+" $(UNKNOWN)]" || string(files["f.yaml"]) != "text" {
			t.Errorf("%s runs %v with the files %q", p.Name, c, files)
		}
	}
	if len(nodes) != 2 {
		t.Errorf("two Pods are on the nodes %v", nodes)
	}
	testkit.WaitFor(t, "the address of the load balancer", func() bool {
		s := testkit.Must(w.client.CoreV1().Services("default").Get(ctx, "s", metav1.GetOptions{}))
		return len(s.Status.LoadBalancer.Ingress) == 1 && strings.HasPrefix(s.Status.LoadBalancer.Ingress[0].IP, "10.9.0.")
	})
	testkit.WaitForValue(t, "the status of the Deployment", func() appsv1.DeploymentStatus {
		return testkit.Must(w.client.AppsV1().Deployments("default").Get(ctx, "d", metav1.GetOptions{})).Status
	}, func(s appsv1.DeploymentStatus) bool {
		return s.ObservedGeneration > 0 && s.Replicas == 2 && s.UpdatedReplicas == 2 && s.ReadyReplicas == 2 && s.AvailableReplicas == 2
	})

	// A selector of nothing has no endpoints; a smaller Deployment fewer Pods.
	w.apply("/api/v1/namespaces/default/services/s", fmt.Sprintf(serviceText, "other"))
	testkit.WaitForValue(t, "no endpoint", w.ready, func(e []string) bool { return len(e) == 0 })
	w.apply("/api/v1/namespaces/default/services/s", fmt.Sprintf(serviceText, "a"))
	w.apply(path, fmt.Sprintf(workloadText, "Deployment", 1, "good"))
	testkit.WaitForValue(t, "one endpoint", w.ready, func(e []string) bool { return len(e) == 1 })
	testkit.WaitFor(t, "one Pod", func() bool { return len(w.running()) == 1 })
	before := w.names()[0]

	// A new template replaces the Pods.
	w.apply(path, fmt.Sprintf(workloadText, "Deployment", 1, "better"))
	testkit.WaitFor(t, "another Pod", func() bool { n := w.names(); return len(n) == 1 && n[0] != before })
	if errs := w.cluster.Failures(); len(errs) > 0 {
		t.Errorf("failures: %v", errs)
	}

	// Without the Deployment there are no Pods, and without the Service no EndpointSlice.
	testkit.NoError(t, w.client.AppsV1().Deployments("default").Delete(ctx, "d", metav1.DeleteOptions{}))
	testkit.WaitFor(t, "no Pod", func() bool { return len(w.running()) == 0 })
	testkit.NoError(t, w.client.CoreV1().Services("default").Delete(ctx, "s", metav1.DeleteOptions{}))
	testkit.WaitFor(t, "no EndpointSlice", func() bool { return len(w.slices()) == 0 })
}

// TestStatefulSet follows a StatefulSet, and a Pod of it that fails: another one takes its place.
func TestStatefulSet(t *testing.T) {
	w := newWorld(t)
	const path = "/apis/apps/v1/namespaces/default/statefulsets/d"
	w.apply(path, fmt.Sprintf(workloadText, "StatefulSet", 2, "good"))
	both := func() bool { return slices.Equal(w.names(), []string{"d-0", "d-1"}) }
	testkit.WaitFor(t, "two Pods", both)
	before := w.running()[1].UID
	w.apply(path, fmt.Sprintf(workloadText, "StatefulSet", 2, "bad"))
	testkit.WaitFor(t, "two attempts to start the last Pod", func() bool { return len(w.cluster.Failures()) >= 2 })
	if n := w.names(); !slices.Equal(n, []string{"d-0"}) {
		t.Errorf("running are %q", n)
	}
	testkit.WantError(t, w.cluster.Failures()[0], "Pod default/d-1: there is no such image")
	w.apply(path, fmt.Sprintf(workloadText, "StatefulSet", 2, "good"))
	testkit.WaitFor(t, "two Pods again", both)
	if w.running()[1].UID == before {
		t.Error("the last Pod was not replaced")
	}
}

// TestPods runs Pods without workloads: one that does not start says why; one that runs ends with the Cluster.
func TestPods(t *testing.T) {
	w := newWorld(t)
	w.createPod("bad", "bad")
	testkit.WaitForValue(t, "the status of the Pod that does not start", func() corev1.PodStatus {
		return testkit.Must(w.client.CoreV1().Pods("default").Get(t.Context(), "bad", metav1.GetOptions{})).Status
	}, func(s corev1.PodStatus) bool {
		return s.Phase == corev1.PodFailed && s.Message == "there is no such image"
	})
	w.createPod("good", "good")
	testkit.WaitFor(t, "the Pod to run", func() bool { return slices.Equal(w.names(), []string{"good"}) })
	zero := int64(0)
	testkit.NoError(t, w.client.CoreV1().Pods("default").Delete(t.Context(), "good", metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	testkit.WaitFor(t, "a Pod that is removed by force to end", func() bool { return len(w.running()) == 0 })
	w.createPod("last", "good")
	testkit.WaitFor(t, "the last Pod", func() bool { return len(w.running()) == 1 })
	w.stop()
	if p := w.names(); len(p) > 0 {
		t.Errorf("%s runs after the end", p[0])
	}
}

// TestReusedName writes the status of a Pod that was removed, after another one got its name: that one keeps its own status.
func TestReusedName(t *testing.T) {
	w := newWorld(t)
	w.createPod("p", "good")
	testkit.WaitFor(t, "the Pod", func() bool { return len(w.running()) == 1 })
	old := w.running()[0]
	zero := int64(0)
	testkit.NoError(t, w.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	testkit.NoError(t, old.SetReady(t.Context(), false))
	w.createPod("p", "good")
	status := func() corev1.PodStatus {
		return testkit.Must(w.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})).Status
	}
	isRunning := func(s corev1.PodStatus) bool { return isReady(&corev1.Pod{Status: s}) }
	testkit.WaitForValue(t, "the other Pod to be ready", status, isRunning)
	testkit.NoError(t, old.SetReady(t.Context(), false))
	if s := status(); !isRunning(s) {
		t.Errorf("the Pod has the status of one that was removed: %+v", s)
	}
}

// TestConfig checks that a Config names what is missing.
func TestConfig(t *testing.T) {
	r := newRecorder()
	good := Config{Client: &kubernetes.Clientset{}, RunPod: RunStarted(r.start), Address: r.address, Host: r.last}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Config){
		"Client is":          func(c *Config) { c.Client = nil },
		"RunPod and Address": func(c *Config) { c.Address = nil },
		"Host is":            func(c *Config) { c.Host = netip.Addr{} },
	} {
		c := good
		change(&c)
		_, err := New(c)
		testkit.WantError(t, err, want)
	}
}
