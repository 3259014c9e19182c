// Package playedcluster plays what a Kubernetes cluster has besides its API server, for tests: the controllers of Deployments,
// StatefulSets and EndpointSlices, a kubelet, and the addresses of Services. Containers are processes of this host; each
// Pod has a network namespace with an address of its own, and each container a mount namespace with its volumes. So
// manifests run unchanged: paths, ports, loopback, names of Services, service accounts, probes, hooks and signals.
//
// A test runs in package isolated, fills in Config, and runs Run while it acts on the API server.
//
// What it leaves out: images, resources, users, security contexts, NetworkPolicies, schedulers (nodes are names), ReplicaSets,
// and restarts: a container that ends by itself is an error.
package playedcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// period is the time between two looks at the API server.
const period = 300 * time.Millisecond

// Config says what a Cluster runs. All fields but Entrypoints and CSI are required.
type Config struct {
	Client     kubernetes.Interface // of a user who may do everything
	APIAddress string               // host:port of the API server
	CAFile     string               // the authority of its certificate, as PEM
	Namespace  string               // whose objects are run
	Dir        string               // for the files of Pods
	// Entrypoints are the programs of images, by the image's name without registry and tag, for containers without a command.
	Entrypoints map[string]string
	// CSI writes the files of a volume of a CSI driver for a Pod.
	CSI    func(volume *corev1.CSIVolumeSource, pod *corev1.Pod, dir string) error
	Logger *slog.Logger // gets what containers write when they end, too
}

// Cluster is a cluster of one namespace.
type Cluster struct {
	cfg     Config
	network *network

	// The fields below belong to Run's loop.
	slices   map[string]discoveryv1.EndpointSlice // as written last, by name
	services map[string]*service                  // by name
	hosts    string                               // text of /etc/hosts
	nodes    int                                  // each Pod has one of its own

	mu       sync.Mutex
	pods     map[string]*runningPod // by UID; guarded by mu
	failures []error                // of containers; guarded by mu
	started  int                    // Pods so far, for their addresses; guarded by mu
}

// New returns a Cluster. It starts nothing.
func New(c Config) *Cluster {
	return &Cluster{cfg: c, network: new(network), slices: map[string]discoveryv1.EndpointSlice{}, services: map[string]*service{}, pods: map[string]*runningPod{}}
}

// Failures returns the errors of containers so far.
func (c *Cluster) Failures() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error(nil), c.failures...)
}

func (c *Cluster) fail(err error) {
	c.cfg.Logger.Error("container failed", "error", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err)
}

// SetUp makes the node in the namespaces of the calling process: /run and /etc are copies then. Call it once, before Run.
func (c *Cluster) SetUp() error { return c.network.setUp() }

// Run plays the cluster until ctx ends, then kills all containers.
func (c *Cluster) Run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(c.cfg.Dir, "pods"), 0o700); err != nil {
		return err
	}
	var pods sync.WaitGroup
	defer pods.Wait()
	defer func() {
		for _, s := range c.services {
			s.close()
		}
	}()
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		if err := c.reconcile(ctx, &pods); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("cluster not reconciled, trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// reconcile acts once on what the API server has.
func (c *Cluster) reconcile(ctx context.Context, running *sync.WaitGroup) error {
	list := metav1.ListOptions{}
	pods, err := c.cfg.Client.CoreV1().Pods(c.cfg.Namespace).List(ctx, list)
	if err != nil {
		return err
	}
	services, err := c.cfg.Client.CoreV1().Services(metav1.NamespaceAll).List(ctx, list)
	if err != nil {
		return err
	}
	if err := c.serve(ctx, services.Items, pods.Items); err != nil {
		return err
	}
	if err := c.runPods(ctx, pods.Items, services.Items, running); err != nil {
		return err
	}
	return errors.Join(c.controlDeployments(ctx, pods.Items), c.controlStatefulSets(ctx, pods.Items))
}

// runPods starts what runs Pods that are new, and ends those that are deleted.
func (c *Cluster) runPods(ctx context.Context, pods []corev1.Pod, services []corev1.Service, running *sync.WaitGroup) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range pods {
		pod := &pods[i]
		r, known := c.pods[string(pod.UID)]
		switch {
		case !known && pod.DeletionTimestamp != nil:
			if err := c.removeObject(ctx, pod); err != nil {
				return err
			}
		case !known:
			c.started++
			r := &runningPod{
				c: c, pod: pod, services: services, ip: podAddress(c.started), netns: fmt.Sprint("pod", c.started),
				dir: filepath.Join(c.cfg.Dir, "pods", string(pod.UID)), deleted: make(chan struct{}),
			}
			c.pods[string(pod.UID)] = r
			running.Go(func() { r.run(ctx) })
		case pod.DeletionTimestamp != nil && !r.deleting:
			r.deleting = true
			close(r.deleted)
		}
	}
	return nil
}

// removeObject removes the object of a Pod whose containers have ended.
func (c *Cluster) removeObject(ctx context.Context, pod *corev1.Pod) error {
	now := int64(0)
	err := c.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if kerrors.IsNotFound(err) || kerrors.IsConflict(err) { // another Pod has its name already
		return nil
	}
	return err
}

// Exec runs a command in a container of a Pod, as "kubectl exec" does, and returns what it writes.
func (c *Cluster) Exec(ctx context.Context, pod, container string, command ...string) (string, error) {
	c.mu.Lock()
	var at *runningPod
	for _, r := range c.pods {
		if r.pod.Name == pod && !r.deleting {
			at = r
		}
	}
	c.mu.Unlock()
	if at == nil {
		return "", fmt.Errorf("no Pod %s runs", pod)
	}
	return at.exec(ctx, container, command)
}

// AddHost makes a network namespace with an address on the network of the Pods, for a program of the test that is no Pod. It
// returns the address, and the command that runs what follows it there. Call it once for each name, which has at most ten letters.
func (c *Cluster) AddHost(name string) (address string, enter []string, err error) {
	c.mu.Lock()
	c.started++
	address = podAddress(c.started)
	c.mu.Unlock()
	return address, []string{"ip", "netns", "exec", name}, c.network.addPod(name, address)
}

// Logs returns the ends of what the running containers of a Pod have written, by container.
func (c *Cluster) Logs(pod string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for _, r := range c.pods {
		if r.pod.Name == pod {
			r.mu.Lock()
			for name, p := range r.processes {
				out[name] = p.tail()
			}
			r.mu.Unlock()
		}
	}
	return out
}
