// Package clustertest does, for tests, what a Kubernetes cluster does besides its API server, on the test's host:
//
//   - Cluster makes the Pods of Deployments and StatefulSets, has them run, and writes their status, the EndpointSlices
//     of Services, and the addresses of load balancers.
//   - Runner is a kubelet: it runs the containers of unchanged manifests as processes, with volumes, service accounts,
//     probes, preStop commands and signals (ScheduledPod resolves what a container gets). RunStarted is for tests that
//     start programs of their own.
//   - Network is a bridge with a network namespace for each Pod, so that programs that listen on every address of
//     their host run side by side.
//   - Proxy makes the addresses and names of Services work, as kube-proxy and a cluster's name server do. Only TCP is
//     served. A short name that Services of two namespaces have leads to either.
//
// The test fills in Config, and runs Cluster.Run while it acts on the API server. It runs in namespaces of its own
// (Isolate), with a copy of /etc where Runner or Proxy are used. Each Pod has a node of its own, which is only a name.
//
// Left out are scheduling, ReplicaSets, quotas, the strategy Recreate, the order in which StatefulSets create Pods and
// their status, and restarts: a Pod that ends by itself has failed, and its workload makes another one. Runner leaves
// out images, of which Entrypoints names the programs, liveness probes, read-only mounts, resources, users and security
// contexts; it does not start a container with other hooks or with gRPC probes.
package clustertest

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// period is the time between two reads of the API server's objects.
const period = 300 * time.Millisecond

// Config is the configuration of a Cluster.
type Config struct {
	// Client is that of a user who may do everything. Required.
	Client kubernetes.Interface
	// RunPod runs a Pod, on a goroutine of its own: it calls SetReady as soon as the Pod serves, ends what it runs when
	// Deleted is closed or, at once, when ctx ends, and returns when that has ended. An error says what has failed. Required.
	RunPod func(ctx context.Context, p Pod) error
	// Address returns the address of a new Pod, which no other has. Required.
	Address func() (netip.Addr, error)
	// Host is the address of the machine that Pods run on, for their status. Required.
	Host netip.Addr
	// Serve is given all Services with what they lead to, whenever that may have changed. nil means that addresses of
	// Services lead nowhere.
	Serve  func([]Service) error
	Logger *slog.Logger // nil discards
}

func (c *Config) validate() error {
	switch {
	case c.Client == nil:
		return errors.New("clustertest: Client is required")
	case c.RunPod == nil || c.Address == nil:
		return errors.New("clustertest: RunPod and Address are required")
	case !c.Host.IsValid():
		return errors.New("clustertest: Host is required")
	}
	if c.Serve == nil {
		c.Serve = func([]Service) error { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Cluster runs the objects of one API server.
type Cluster struct {
	cfg Config

	// The fields below belong to Run's loop.
	running map[string]*instance                 // by UID
	slices  map[string]discoveryv1.EndpointSlice // as written last, by namespace and name of the Service
	errors  map[string]string                    // the last error of each step
	nodes   int                                  // so far

	instances sync.WaitGroup // goroutines of RunPod

	mu       sync.Mutex
	failures []error // guarded by mu
}

// New returns a Cluster. Nothing runs before Run.
func New(c Config) (*Cluster, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Cluster{cfg: c, running: map[string]*instance{}, slices: map[string]discoveryv1.EndpointSlice{}, errors: map[string]string{}}, nil
}

// Failures returns the errors of all Pods so far. It may be called from any goroutine.
func (c *Cluster) Failures() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error(nil), c.failures...)
}

// Run runs the objects until ctx ends, and returns nil when all Pods have ended.
func (c *Cluster) Run(ctx context.Context) error {
	defer c.instances.Wait()
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		c.do(ctx, "read the objects", c.reconcile)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// objects are the API server's, as read by one reconciliation.
type objects struct {
	pods     []corev1.Pod
	services []corev1.Service
}

// reconcile acts once on what the API server has. A step that fails keeps no other from its work.
func (c *Cluster) reconcile(ctx context.Context) error {
	list := metav1.ListOptions{}
	pods, err := c.cfg.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, list)
	if err != nil {
		return err
	}
	services, err := c.cfg.Client.CoreV1().Services(metav1.NamespaceAll).List(ctx, list)
	if err != nil {
		return err
	}
	o := objects{pods.Items, services.Items}
	for _, step := range []struct {
		name string
		do   func(context.Context, objects) error
	}{{"serve Services", c.syncServices}, {"run Pods", c.syncPods}, {"control Deployments", c.syncDeployments}, {"control StatefulSets", c.syncStatefulSets}} {
		c.do(ctx, step.name, func(ctx context.Context) error { return step.do(ctx, o) })
	}
	return nil
}

// do takes a step and logs each new error of it: the next reconciliation tries again.
func (c *Cluster) do(ctx context.Context, what string, step func(context.Context) error) {
	text := ""
	if err := step(ctx); err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != c.errors[what] {
		c.cfg.Logger.Warn("cluster not reconciled, trying again", "step", what, "error", text)
	}
	c.errors[what] = text
}

// ClientConfig returns how to reach an API server as the user who may do everything, as often as a test likes.
func ClientConfig(s *kubetest.Server) *rest.Config {
	return &rest.Config{Host: "https://" + s.Address, BearerToken: s.Token, TLSClientConfig: rest.TLSClientConfig{CAFile: s.CAFile}, QPS: -1}
}
