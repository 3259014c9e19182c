package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/cascadeinfer/cascade/cmd/internal/controld"
	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// poolCRD defines InferencePools with the fields that discovery reads.
const poolCRD = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "inferencepools.inference.networking.k8s.io",
  "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1173"}},
 "spec": {"group": "inference.networking.k8s.io", "scope": "Namespaced", "names": {"plural": "inferencepools", "singular": "inferencepool", "kind": "InferencePool", "listKind": "InferencePoolList"},
  "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
    "selector": {"type": "object", "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}}},
    "targetPorts": {"type": "array", "items": {"type": "object", "properties": {"number": {"type": "integer", "format": "int32"}}}}}}}}}}]}}`

// liveCluster is a real API server, a discovery that may do what deploy/kubernetes/discovery.yaml allows,
// and a control plane that follows the file.
type liveCluster struct {
	*testing.T
	api                   *kubetest.Server
	base, out, config     string
	status, controlStatus string // addresses of /status
	stop                  func() // ends discovery
}

// freeAddress returns an address of loopback that was free.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func newLiveCluster(t *testing.T) *liveCluster {
	testkit.SkipSlow(t)
	c := &liveCluster{T: t, api: kubetest.Start(t), status: freeAddress(t)}
	dir := t.TempDir()
	c.base, c.out, c.config = filepath.Join(dir, "base.yaml"), filepath.Join(dir, "fleet.yaml"), filepath.Join(dir, "kubeconfig")
	c.controlStatus = freeAddress(t)
	testkit.NoError(t, os.WriteFile(c.base, []byte(strings.Replace(baseText, "control:\n", "control:\n  listen: "+freeAddress(t)+"\n  admin: "+c.controlStatus+"\n", 1)), 0o600))
	testkit.NoError(t, os.WriteFile(c.config, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %s}}]
users: [{name: u, user: {token: %s, as: "system:serviceaccount:llm:cascade-discovery"}}]
contexts: [{name: c, context: {cluster: c, user: u, namespace: llm}}]
`, c.api.Address, c.api.CAFile, c.api.Token), 0o600))
	c.api.Do("POST", "/api/v1/namespaces", []byte(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "llm"}}`))
	c.api.Do("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", []byte(poolCRD))
	c.applyManifest("../../deploy/kubernetes/discovery.yaml")
	return c
}

// applyManifest creates the objects of a file, without a field that the API server does not know.
func (c *liveCluster) applyManifest(path string) {
	c.Helper()
	text, err := os.ReadFile(path)
	testkit.NoError(c, err)
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		object, err := utilyaml.ToJSON(doc)
		testkit.NoError(c, err)
		var kind struct{ Kind string }
		testkit.NoError(c, json.Unmarshal(object, &kind))
		folder := map[string]string{"ServiceAccount": "/api/v1/namespaces/llm/serviceaccounts", "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/llm/roles", "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/llm/rolebindings"}[kind.Kind]
		if folder == "" {
			c.Fatalf("%s has a %s", path, kind.Kind)
		}
		c.api.Do("POST", folder+"?fieldValidation=Strict", object)
	}
}

// discover runs "cascade-kube discover" until the function that it sets is called.
func (c *liveCluster) discover(source ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	log := &testkit.Log{}
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, append([]string{"discover", "--log", "info", "-c", c.base, "-o", c.out, "--kubeconfig", c.config, "--admin", c.status}, source...), log, log)
	}()
	c.stop = func() {
		cancel()
		if code := <-done; code != 0 {
			c.Errorf("discover ended with %d", code)
		}
	}
	c.Cleanup(func() {
		if c.Failed() {
			c.Log(log.String())
		}
	})
}

// createPod creates a Pod that runs and is ready or not, as a kubelet reports it.
func (c *liveCluster) createPod(name, ip string, ready bool, annotations string) {
	c.Helper()
	c.createGatedPod(name, ip, ready, annotations, "")
}

// createGatedPod creates a Pod that also has readiness gates.
func (c *liveCluster) createGatedPod(name, ip string, ready bool, annotations, gates string) {
	c.Helper()
	c.api.Do("POST", "/api/v1/namespaces/llm/pods", fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "labels": {"app": "vllm"}, "annotations": {%s}},
		"spec": {"nodeName": "n1", "readinessGates": [%s], "containers": [{"name": "engine", "image": "vllm"}]}}`, name, annotations, gates))
	c.setStatus(name, ip, ready)
}

// setContainersReady reports the containers of a Pod as a kubelet does, which leaves conditions of others alone.
func (c *liveCluster) setContainersReady(name string, ready bool) {
	c.Helper()
	state := map[bool]string{true: "True", false: "False"}[ready]
	c.api.Do("PATCH", "/api/v1/namespaces/llm/pods/"+name+"/status", fmt.Appendf(nil, `{"status": {"conditions": [{"type": "ContainersReady", "status": %q}]}}`, state))
}

// condition returns the condition of discovery of a Pod: its status and reason.
func (c *liveCluster) condition(name string) func() string {
	return func() string {
		var pod struct {
			Status struct {
				Conditions []struct{ Type, Status, Reason string }
			}
		}
		testkit.NoError(c, json.Unmarshal(c.api.Do("GET", "/api/v1/namespaces/llm/pods/"+name, nil), &pod))
		for _, o := range pod.Status.Conditions {
			if o.Type == discovery.ConditionType {
				return o.Status + " " + o.Reason
			}
		}
		return "none"
	}
}

func (c *liveCluster) setStatus(name, ip string, ready bool) {
	c.Helper()
	state := map[bool]string{true: "True", false: "False"}[ready]
	c.api.Do("PATCH", "/api/v1/namespaces/llm/pods/"+name+"/status", fmt.Appendf(nil, `{"status": {"phase": "Running", "podIP": %[1]q, "podIPs": [{"ip": %[1]q}], "conditions": [{"type": "Ready", "status": %[2]q}]}}`, ip, state))
}

// replicas returns the Pods of the fleet file's replicas, with "-" before those that drain.
func (c *liveCluster) replicas() string {
	text, err := os.ReadFile(c.out)
	if err != nil {
		return ""
	}
	var fleet struct {
		Replicas []struct {
			ID    string
			Drain bool
		}
	}
	object, err := utilyaml.ToJSON(text)
	testkit.NoError(c, err)
	testkit.NoError(c, json.Unmarshal(object, &fleet))
	var names []string
	for _, r := range fleet.Replicas {
		name, _, _ := discovery.PodOf(r.ID)
		if r.Drain {
			name = "-" + name
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func (c *liveCluster) await(want string, what func() string) {
	c.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		got := what()
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("got %q, want %q; status: %s", got, want, c.get(c.status))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// get returns /status of a process; its error where it does not answer.
func (c *liveCluster) get(address string) string {
	r, err := http.Get("http://" + address + "/status")
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return string(text)
}

// events returns the sorted reasons of the Events about an object.
func (c *liveCluster) events(name string) string {
	var list struct {
		Items []struct {
			Reason    string
			Regarding struct{ Name string }
		}
	}
	testkit.NoError(c, json.Unmarshal(c.api.Do("GET", "/apis/events.k8s.io/v1/namespaces/llm/events", nil), &list))
	var reasons []string
	for _, e := range list.Items {
		if e.Regarding.Name == name {
			reasons = append(reasons, e.Reason)
		}
	}
	slices.Sort(reasons)
	return strings.Join(reasons, " ")
}

// control runs the control plane on the fleet file, and returns a function that returns the
// Pods of the replicas that it shows.
func (c *liveCluster) control() func() string {
	fleet, err := wiring.Load(c.out)
	testkit.NoError(c, err)
	testkit.Run(c, func(ctx context.Context) error {
		return controld.Run(ctx, controld.Config{Fleet: fleet, Path: c.out, Logger: slog.New(slog.DiscardHandler), Started: func(string) {}})
	})
	return func() string {
		var s struct {
			Models []struct {
				Stages     []struct{ Replicas []struct{ ID string } }
				Unassigned []struct{ ID string }
			}
		}
		if json.Unmarshal([]byte(c.get(c.controlStatus)), &s) != nil {
			return ""
		}
		var names []string
		for _, m := range s.Models {
			all := m.Unassigned
			for _, stage := range m.Stages {
				all = append(all, stage.Replicas...)
			}
			for _, r := range all {
				name, _, _ := discovery.PodOf(r.ID)
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
}

// TestDiscoveryOnAPIServer plays the life of a fleet on a real API server, with the permissions of the
// manifest: Pods come, get bad annotations, lose readiness, terminate and go; discovery restarts;
// the API server is away.
func TestDiscoveryOnAPIServer(t *testing.T) {
	c := newLiveCluster(t)
	c.discover("--pool", "vllm")
	c.api.Do("POST", "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools", []byte(`{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "vllm"},
		"spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 9000}]}}`))
	c.createPod("a", "127.0.0.2", true, "")
	c.createPod("b", "127.0.0.3", true, `"cascadeinfer.com/batch": "8"`)
	c.createPod("bad", "127.0.0.4", true, `"cascadeinfer.com/batch": "many"`)
	c.await("a b", c.replicas)
	shown := c.control()
	c.await("a b", shown)

	c.setStatus("b", "127.0.0.3", false)
	c.await("a -b", c.replicas)
	c.setStatus("b", "127.0.0.3", true)
	c.createPod("new", "127.0.0.5", false, "")
	c.await("a b", c.replicas)
	c.setStatus("new", "127.0.0.5", true)
	c.await("a b new", c.replicas)
	c.await("a b new", shown)
	c.api.Do("DELETE", "/api/v1/namespaces/llm/pods/a", nil) // no kubelet ends it
	c.await("-a b new", c.replicas)

	c.stop()
	c.discover("--pool", "vllm")
	c.api.Do("DELETE", "/api/v1/namespaces/llm/pods/a?gracePeriodSeconds=0", nil)
	c.await("b new", c.replicas)
	c.await("b new", shown)
	c.await("true", func() string { return fmt.Sprint(strings.Contains(c.events("vllm"), "ReplicaGone")) })

	c.api.Kill()
	c.await("true", func() string { return fmt.Sprint(strings.Contains(c.get(c.status), "the last state stays")) })
	if got := c.replicas(); got != "b new" {
		t.Errorf("without an API server the fleet file has %q", got)
	}
	c.api.Restart()
	c.createPod("late", "127.0.0.6", true, "")
	c.await("b late new", c.replicas)
	c.await("true", func() string { return fmt.Sprint(!strings.Contains(c.get(c.status), "the last state stays")) })
	c.await("b late new", shown)
	c.stop()
	// The second process repeats only what is left out. A busy host shows Pods before they have a status, too.
	events := regexp.MustCompile("(PodLeftOut ){3,}").ReplaceAllString(c.events("vllm"), "PodLeftOut… ")
	if got, want := events, "DrainBegun DrainBegun PodLeftOut… ReplicaGone ReplicaJoined ReplicaJoined ReplicaJoined ReplicaJoined ReplicaServes"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
}

// TestServiceOnAPIServer checks a Service with an EndpointSlice.
func TestServiceOnAPIServer(t *testing.T) {
	c := newLiveCluster(t)
	c.api.Do("POST", "/api/v1/namespaces/llm/services", []byte(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vllm"}, "spec": {"selector": {"app": "vllm"}, "ports": [{"port": 9000}]}}`))
	c.createPod("a", "127.0.0.2", true, "")
	c.createPod("b", "127.0.0.3", true, "")
	endpoint := func(pod string, ready bool) string {
		var object struct{ Metadata struct{ UID string } }
		testkit.NoError(c, json.Unmarshal(c.api.Do("GET", "/api/v1/namespaces/llm/pods/"+pod, nil), &object))
		return fmt.Sprintf(`{"addresses": ["10.1.0.%d"], "conditions": {"ready": %v}, "targetRef": {"kind": "Pod", "namespace": "llm", "name": %q, "uid": %q}}`, pod[0], ready, pod, object.Metadata.UID)
	}
	slice := func(b bool) []byte {
		return fmt.Appendf(nil, `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "vllm-1", "labels": {"kubernetes.io/service-name": "vllm"}},
			"addressType": "IPv4", "ports": [{"name": "", "port": 9000, "protocol": "TCP"}], "endpoints": [%s, %s]}`, endpoint("a", true), endpoint("b", b))
	}
	c.api.Do("POST", "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices", slice(true))
	c.discover("--service", "vllm")
	c.await("a b", c.replicas)
	c.api.Do("PUT", "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices/vllm-1", slice(false))
	c.await("a -b", c.replicas)
	c.stop()
}

// TestReadinessGatesOnAPIServer plays the life of a Pod whose readiness waits for discovery, with the permissions of
// the manifests: the gate opens when the fleet file has its replica, and closes while that drains.
func TestReadinessGatesOnAPIServer(t *testing.T) {
	c := newLiveCluster(t)
	c.api.Do("POST", "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools", []byte(`{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "vllm"},
		"spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 9000}]}}`))
	c.createPod("a", "127.0.0.2", true, "")
	c.createGatedPod("b", "127.0.0.3", false, "", `{"conditionType": "cascadeinfer.com/ready"}`)
	c.setContainersReady("b", true)
	c.discover("--pool", "vllm") // without --conditions
	c.await("a", c.replicas)
	c.await("true", func() string {
		return fmt.Sprint(strings.Contains(c.get(c.status), "only discovery with --conditions sets"))
	})
	c.stop()
	if got := c.condition("a")(); got != "none" {
		t.Errorf("without --conditions Pod a has %s", got)
	}

	// The right is a manifest of its own: what discovery.yaml allows does not do.
	c.discover("--pool", "vllm", "--conditions")
	c.await("true", func() string { return fmt.Sprint(strings.Contains(c.get(c.status), "is forbidden")) })
	c.applyManifest("../../deploy/kubernetes/discovery-conditions.yaml")
	c.await("a b", c.replicas)
	c.await("True Serving", c.condition("a"))
	c.await("True Serving", c.condition("b"))
	c.createGatedPod("c", "127.0.0.4", false, "", `{"conditionType": "cascadeinfer.com/ready"}`)
	c.await("False LeftOut", c.condition("c"))
	c.setContainersReady("b", false)
	c.await("False Draining", c.condition("b"))
	c.await("a -b", c.replicas)
	c.setContainersReady("b", true)
	c.await("True Serving", c.condition("b"))

	// Another Pod of the name is another Pod, and the role allows nothing but the status.
	c.api.Do("DELETE", "/api/v1/namespaces/llm/pods/b", nil)
	c.await("False Draining", c.condition("b"))
	c.api.Do("DELETE", "/api/v1/namespaces/llm/pods/b?gracePeriodSeconds=0", nil)
	c.createGatedPod("b", "127.0.0.5", false, "", `{"conditionType": "cascadeinfer.com/ready"}`)
	c.setContainersReady("b", true)
	c.await("True Serving", c.condition("b"))
	c.await("a b", c.replicas)
	if text := c.get(c.status); strings.Contains(text, "conditions of Pods") {
		t.Errorf("status: %s", text)
	}
	c.stop()
}
