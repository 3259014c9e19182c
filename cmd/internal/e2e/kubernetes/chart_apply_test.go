package kubernetes

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// The modules that have the definitions of the kinds that the chart uses besides Kubernetes' own.
var definitions = map[string]string{
	"sigs.k8s.io/gateway-api-inference-extension@v1.5.0":         "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
	"github.com/prometheus-operator/prometheus-operator@v0.85.0": "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
}

// places are where the API server has the objects of a kind, with %s for the namespace.
var places = map[string]string{
	"v1 Namespace":                      "/api/v1/namespaces",
	"v1 ConfigMap":                      "/api/v1/namespaces/%s/configmaps",
	"v1 Service":                        "/api/v1/namespaces/%s/services",
	"v1 ServiceAccount":                 "/api/v1/namespaces/%s/serviceaccounts",
	"v1 Pod":                            "/api/v1/namespaces/%s/pods",
	"rbac.authorization.k8s.io/v1 Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles",
	"rbac.authorization.k8s.io/v1 RoleBinding":         "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings",
	"apps/v1 StatefulSet":                              "/apis/apps/v1/namespaces/%s/statefulsets",
	"apps/v1 Deployment":                               "/apis/apps/v1/namespaces/%s/deployments",
	"apps/v1 DaemonSet":                                "/apis/apps/v1/namespaces/%s/daemonsets",
	"policy/v1 PodDisruptionBudget":                    "/apis/policy/v1/namespaces/%s/poddisruptionbudgets",
	"networking.k8s.io/v1 NetworkPolicy":               "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies",
	"autoscaling/v2 HorizontalPodAutoscaler":           "/apis/autoscaling/v2/namespaces/%s/horizontalpodautoscalers",
	"apiextensions.k8s.io/v1 CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
	"inference.networking.k8s.io/v1 InferencePool":     "/apis/inference.networking.k8s.io/v1/namespaces/%s/inferencepools",
	"monitoring.coreos.com/v1 ServiceMonitor":          "/apis/monitoring.coreos.com/v1/namespaces/%s/servicemonitors",
}

// apiServer is a client of a running API server.
type apiServer struct {
	base, token string
	client      *http.Client
	kubeconfig  string // a file, for Helm
}

// startAPIServer starts an API server that knows the kinds of definitions and has the namespaces of
// the tests; restricted admits Pods by Pod Security's level of that name.
func startAPIServer(t *testing.T) apiServer {
	t.Helper()
	s := kubetest.Start(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(testkit.Must(os.ReadFile(s.CAFile)))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(transport.CloseIdleConnections)
	a := apiServer{"https://" + s.Address, s.Token, &http.Client{Transport: transport, Timeout: 30 * time.Second}, filepath.Join(t.TempDir(), "kubeconfig")}
	testkit.NoError(t, os.WriteFile(a.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "%s"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
`, a.serveVersion(t)), 0o600))
	for _, name := range []string{chartNamespace, "llm", "restricted"} {
		o := object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}
		if name == "restricted" {
			o["metadata"].(map[string]any)["labels"] = map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}
		}
		testkit.NoError(t, a.apply(o, false))
	}
	for _, module := range slices.Sorted(maps.Keys(definitions)) {
		text, err := os.ReadFile(filepath.Join(moduleFolder(t, module), definitions[module]))
		testkit.NoError(t, err)
		for _, o := range objects(t, string(text)) {
			testkit.NoError(t, a.apply(o, false))
		}
	}
	// The definitions take effect a moment after they are stored.
	testkit.WaitFor(t, "the definitions to be served", func() bool {
		_, pools := a.get("inference.networking.k8s.io/v1 InferencePool", "")
		_, monitors := a.get("monitoring.coreos.com/v1 ServiceMonitor", "")
		return pools == nil && monitors == nil
	})
	return a
}

// serveVersion serves the API server in plain text, logged in, and with the version of a release, which charts ask
// for: an API server that is built from its Go modules does not know its own. It returns the URL.
func (a apiServer) serveVersion(t *testing.T) string {
	to := testkit.Must(url.Parse(a.base))
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Set("Authorization", "Bearer "+a.token)
		},
		Transport: a.client.Transport,
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Path == "/version" {
				version := fmt.Appendf(nil, `{"major": "1", "minor": "34", "gitVersion": "v%s"}`, chartKubernetes)
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(version)), int64(len(version))
				r.Header.Set("Content-Length", strconv.Itoa(len(version)))
			}
			return nil
		},
	})
	t.Cleanup(proxy.Close)
	return proxy.URL
}

// get returns an object of the test's namespace, or all of a kind if the name is empty.
func (a apiServer) get(kind, name string) (object, error) {
	r, err := http.NewRequest(http.MethodGet, a.base+strings.TrimSuffix(fmt.Sprintf(places[kind], chartNamespace)+"/"+name, "/"), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+a.token)
	resp, err := a.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var o object
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&o); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s", kind, name, resp.Status)
	}
	return o, nil
}

// moduleFolder returns the folder of a Go module, which it downloads.
func moduleFolder(t *testing.T, module string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir() // no module, so that none is changed
	out, err := cmd.Output()
	var m struct{ Dir string }
	if err != nil || json.Unmarshal(out, &m) != nil || m.Dir == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the definitions in " + module + " cannot be downloaded", Remedy: "give the test access to a Go module proxy"})
	}
	return m.Dir
}

// apply applies an object by strict server-side apply, where dryRun is set without storing it.
func (a apiServer) apply(o object, dryRun bool) error {
	place, ok := places[o.text("apiVersion")+" "+o.text("kind")]
	if !ok {
		return fmt.Errorf("%v: the test does not know where %s is", o, o.text("kind"))
	}
	if strings.Contains(place, "%s") {
		in := o.text("metadata", "namespace")
		if in == "" {
			in = chartNamespace
		}
		place = fmt.Sprintf(place, in)
	}
	query := "?fieldManager=test&force=true&fieldValidation=Strict"
	if dryRun {
		query += "&dryRun=All"
	}
	body, err := yaml.Marshal(o)
	if err != nil {
		return err
	}
	if err := a.patch(place+"/"+o.text("metadata", "name")+query, "application/apply-patch+yaml", body); err != nil {
		return fmt.Errorf("%v: %w", o, err)
	}
	return nil
}

// patch sends a patch of an object.
func (a apiServer) patch(place, contentType string, body []byte) error {
	r, err := http.NewRequest(http.MethodPatch, a.base+place, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+a.token)
	r.Header.Set("Content-Type", contentType)
	resp, err := a.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		var s struct{ Message string }
		_ = json.Unmarshal(answer, &s)
		return fmt.Errorf("%s: %s", resp.Status, s.Message)
	}
	return nil
}

// TestServerSideApply has a real API server check every object: the chart with each file of values, the
// kustomizations and the single manifests. Unknown fields, wrong types and invalid values are errors.
func TestServerSideApply(t *testing.T) {
	all := renderings(t)
	for _, folder := range kustomizations {
		all[folder] = kustomize(t, folder)
	}
	for _, file := range []string{"deploy/kubernetes/epp.yaml", "deploy/kubernetes/hpa.yaml", "deploy/vllm/networkpolicy.yaml"} {
		all[file] = string(testkit.Must(os.ReadFile(filepath.Join(root, file))))
	}
	a := startAPIServer(t)
	kinds := map[string]int{}
	for name, text := range all {
		for _, o := range objects(t, text) {
			if err := a.apply(o, true); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			kinds[o.text("kind")]++
		}
	}
	t.Logf("applied %v", kinds)
	for _, kind := range []string{"StatefulSet", "Deployment", "DaemonSet", "ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "HorizontalPodAutoscaler", "InferencePool", "ServiceMonitor", "Role", "RoleBinding"} {
		if kinds[kind] == 0 {
			t.Errorf("no %s was applied", kind)
		}
	}
	// The sidecar as kubectl applies it to a Deployment that is there.
	engines := findObject(t, string(testkit.Must(os.ReadFile(filepath.Join(root, "deploy/kubernetes/example/vllm.yaml")))), "Deployment", "llama")
	engines.field("metadata")["namespace"] = "llm"
	testkit.NoError(t, a.apply(engines, false))
	sidecar := testkit.Must(yaml.YAMLToJSON(testkit.Must(os.ReadFile(filepath.Join(root, "deploy/kubernetes/sidecar/migrator.yaml")))))
	testkit.NoError(t, a.patch(fmt.Sprintf(places["apps/v1 Deployment"], "llm")+"/llama?fieldValidation=Strict", "application/strategic-merge-patch+json", sidecar))
	// The check is strict.
	for _, wrong := range []object{
		{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "wrong"}, "dta": map[string]any{}},
		{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": map[string]any{"name": "wrong"}, "spec": map[string]any{"replicas": "two"}},
	} {
		if err := a.apply(wrong, true); err == nil {
			t.Errorf("%v was applied", wrong)
		}
	}
	for name, text := range renderings(t) {
		for _, o := range objects(t, text) {
			if pod := podOf(o); pod != nil {
				if err := a.apply(pod, true); err != nil {
					t.Errorf("values %q: %v: as a restricted Pod: %v", name, o, err)
				}
			}
		}
	}
	privileged := object{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "wrong", "namespace": "restricted"},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}},
	}
	testkit.WantError(t, a.apply(privileged, true), "violates PodSecurity")
}

// podOf returns a Pod by the template of an object of the chart, in the namespace for restricted Pods; nil
// if it has none. Containers that users add are left out.
func podOf(o object) object {
	pod := maps.Clone(map[string]any(podSpec(o)))
	if pod == nil {
		return nil
	}
	pod["containers"] = pod["containers"].([]any)[:1]
	delete(pod, "priorityClassName")
	volumes, _ := pod["volumes"].([]any)
	for _, claim := range listOf(o.field("spec")["volumeClaimTemplates"]) {
		name := object(claim.(map[string]any)).text("metadata", "name")
		volumes = append(slices.Clone(volumes), map[string]any{"name": name, "emptyDir": map[string]any{}})
	}
	pod["volumes"] = volumes
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "pod", "namespace": "restricted"}, "spec": pod}
}
