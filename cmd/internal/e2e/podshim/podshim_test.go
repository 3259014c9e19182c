package podshim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// recorder starts Pods that do nothing, and records which run.
type recorder struct {
	mu   sync.Mutex
	pods map[string]Pod // by name; guarded by mu
	last netip.Addr     // guarded by mu
}

func (r *recorder) start(_ context.Context, p Pod) (func(), error) {
	if p.Containers[0].Image == "bad" {
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

func (r *recorder) running() (out []Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pods {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

const (
	deploymentText = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "default"}, "spec": {"replicas": %d, "selector": {"matchLabels": {"app": "a"}},
	"template": {"metadata": {"labels": {"app": "a"}}, "spec": {"terminationGracePeriodSeconds": 130, "containers": [{"name": "c", "image": %q, "args": ["--ip=$(IP)", "$(UNKNOWN)"],
		"env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, {"name": "N", "value": "v"}],
		"ports": [{"name": "web", "containerPort": 3000}], "volumeMounts": [{"name": "m", "mountPath": "/config"}]}], "volumes": [{"name": "m", "configMap": {"name": "m"}}]}}}}`
	configText  = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}, "data": {"f.yaml": "text"}}`
	serviceText = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "default"}, "spec": {"type": "LoadBalancer", "selector": {"app": %q},
	"ports": [{"name": "one", "port": 80, "targetPort": "web"}, {"name": "two", "port": 9002, "targetPort": 9003}]}}`
)

// TestShim follows a Deployment and its Service on a real API server.
func TestShim(t *testing.T) {
	testkit.SkipSlow(t)
	server := kubetest.Start(t)
	api := testkit.Must(NewAPI(server.Address, server.CAFile, server.Token))
	t.Cleanup(api.Close)
	r := &recorder{pods: make(map[string]Pod), last: netip.MustParseAddr("10.9.0.1")}
	shim := testkit.Must(New(Config{API: api, Start: r.start, Address: r.address, Host: netip.MustParseAddr("10.9.0.1")}))
	stop := testkit.Run(t, shim.Run)
	ctx := t.Context()
	const base = "/apis/apps/v1/namespaces/default/deployments/d"
	apply := func(path, text string) { t.Helper(); testkit.NoError(t, api.Apply(ctx, path, []byte(text))) }
	endpoints := func() (out []string) {
		var l listOf[struct {
			Endpoints []struct{ Addresses []string }
			Ports     []struct{ Port int }
		}]
		testkit.NoError(t, api.Do(ctx, http.MethodGet, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector="+serviceLabel+"%3Ds", nil, &l))
		for _, s := range l.Items {
			for _, e := range s.Endpoints {
				out = append(out, fmt.Sprint(e.Addresses, s.Ports))
			}
		}
		slices.Sort(out)
		return out
	}

	apply("/api/v1/namespaces/default/configmaps/m", configText)
	apply("/api/v1/namespaces/default/services/s", fmt.Sprintf(serviceText, "a"))
	apply(base, fmt.Sprintf(deploymentText, 2, "good"))
	testkit.WaitForValue(t, "endpoints", endpoints, func(e []string) bool {
		return slices.Equal(e, []string{"[10.9.0.2] [{3000} {9003}]", "[10.9.0.3] [{3000} {9003}]"})
	})
	for _, p := range r.running() {
		c := p.Containers[0]
		if got, want := fmt.Sprint(c.Args, c.Env, c.Files, c.Ports), fmt.Sprintf("[--ip=%[1]v $(UNKNOWN)] map[IP:%[1]v N:v] map[/config/f.yaml:text] [3000]", p.IP); got != want {
			t.Errorf("%s runs %s, want %s", p.Name, got, want)
		}
	}
	testkit.WaitFor(t, "the address of the load balancer", func() bool {
		var s service
		testkit.NoError(t, api.Do(ctx, http.MethodGet, "/api/v1/namespaces/default/services/s", nil, &s))
		return len(s.Status.LoadBalancer.Ingress) == 1 && strings.HasPrefix(s.Status.LoadBalancer.Ingress[0].IP, "10.9.0.")
	})
	testkit.WaitFor(t, "the status of the Deployment", func() bool {
		var d struct{ Status struct{ ReadyReplicas int } }
		testkit.NoError(t, api.Do(ctx, http.MethodGet, base, nil, &d))
		return d.Status.ReadyReplicas == 2
	})

	// A selector of nothing has no endpoints; a smaller Deployment fewer Pods.
	apply("/api/v1/namespaces/default/services/s", fmt.Sprintf(serviceText, "other"))
	testkit.WaitForValue(t, "no endpoint", endpoints, func(e []string) bool { return len(e) == 0 })
	apply("/api/v1/namespaces/default/services/s", fmt.Sprintf(serviceText, "a"))
	apply(base, fmt.Sprintf(deploymentText, 1, "good"))
	testkit.WaitForValue(t, "one endpoint", endpoints, func(e []string) bool { return len(e) == 1 })
	testkit.WaitFor(t, "one Pod", func() bool { return len(r.running()) == 1 })
	before := r.running()[0].Name

	// A new template replaces the Pods; one that does not start says why.
	apply(base, fmt.Sprintf(deploymentText, 1, "better"))
	testkit.WaitFor(t, "another Pod", func() bool { p := r.running(); return len(p) == 1 && p[0].Name != before })
	testkit.NoError(t, api.Do(ctx, http.MethodPost, "/api/v1/namespaces/default/pods", json.RawMessage(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"},
		"spec": {"nodeName": "node", "containers": [{"name": "c", "image": "bad"}]}}`), nil))
	testkit.WaitFor(t, "the status of the Pod that does not start", func() bool {
		var p struct {
			Status struct{ Phase, Message string }
		}
		testkit.NoError(t, api.Do(ctx, http.MethodGet, "/api/v1/namespaces/default/pods/bad", nil, &p))
		return p.Status.Phase == "Failed" && p.Status.Message == "there is no such image"
	})

	// Without the Deployment there are no Pods; what still runs ends with the shim.
	testkit.NoError(t, api.Do(ctx, http.MethodDelete, base, nil, nil))
	testkit.WaitFor(t, "no Pod", func() bool { return len(r.running()) == 0 })
	testkit.NoError(t, api.Do(ctx, http.MethodDelete, "/api/v1/namespaces/default/services/s", nil, nil))
	testkit.WaitFor(t, "no EndpointSlice", func() bool {
		l, err := list[slice](ctx, api, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector="+managedByLabel+"%3D"+managedBy)
		return err == nil && len(l) == 0
	})
	testkit.NoError(t, api.Do(ctx, http.MethodPost, "/api/v1/namespaces/default/pods", json.RawMessage(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "last"},
		"spec": {"containers": [{"name": "c", "image": "good"}]}}`), nil))
	testkit.WaitFor(t, "the last Pod", func() bool { return len(r.running()) == 1 })
	stop()
	if p := r.running(); len(p) > 0 {
		t.Errorf("%s runs after the end", p[0].Name)
	}
}

// TestConfig checks that a Config names what is missing.
func TestConfig(t *testing.T) {
	good := Config{API: &API{}, Start: (&recorder{}).start, Address: (&recorder{}).address, Host: netip.MustParseAddr("10.9.0.1")}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Config){
		"API is":            func(c *Config) { c.API = nil },
		"Start and Address": func(c *Config) { c.Address = nil },
		"Host is":           func(c *Config) { c.Host = netip.Addr{} },
	} {
		c := good
		change(&c)
		_, err := New(c)
		testkit.WantError(t, err, want)
	}
}
