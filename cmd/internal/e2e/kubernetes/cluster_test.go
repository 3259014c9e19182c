package kubernetes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clustertest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// programs is the folder of cascade and cascade-kube in the namespaces of the test, where images have them.
const programs = "/usr/local/bin"

// namespace has everything.
const namespace = "llm"

// trustDomain is that of all certificates.
const trustDomain = "cluster.local"

// cluster is a cluster in the namespaces of the test.
type cluster struct {
	t          *testing.T
	objects    *clustertest.Cluster
	network    *clustertest.Network
	pods       *clustertest.Runner
	client     kubernetes.Interface
	rest       *rest.Config
	kubeconfig string
	authority  *devca.Authority
	dir        string
}

// newCluster starts an API server, and runs its objects on this host until the end of the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	harness.CopyEtc(t)
	if out, err := exec.Command("mount", "--bind", filepath.Dir(testkit.Must(cascadeKube())), programs).CombinedOutput(); err != nil {
		t.Fatalf("mount %s: %v: %s", programs, err, out)
	}
	dir, err := os.MkdirTemp("", "cluster")
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{t: t, dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig"), authority: testkit.Must(devca.New(trustDomain, time.Now()))}
	testkit.NoError(t, c.authority.Save(dir))
	api := kubetest.Start(t)
	testkit.NoError(t, writeKubeconfig(c.kubeconfig, api, api.Address, ""))
	c.rest = clustertest.ClientConfig(api)
	c.client = testkit.Must(kubernetes.NewForConfig(c.rest))
	_, err = c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	testkit.NoError(t, err)
	log := &testkit.Log{}
	c.network = testkit.Must(clustertest.NewNetwork(netip.MustParsePrefix("10.244.0.0/16")))
	c.pods = testkit.Must(clustertest.NewRunner(clustertest.RunnerConfig{
		Source: clustertest.Source{Client: c.client, CAFile: api.CAFile}, Network: c.network, Dir: filepath.Join(dir, "pods"),
		Entrypoints: map[string]string{"cascade": programs + "/cascade", "cascade-kube": programs + "/cascade-kube"},
		CSI:         c.issueVolume, Logger: log.Logger(),
	}))
	proxy := testkit.Must(clustertest.NewProxy(clustertest.ProxyConfig{Network: c.network, API: api.Address}))
	t.Cleanup(func() { testkit.NoError(t, proxy.Close()) })
	c.objects = testkit.Must(clustertest.New(clustertest.Config{
		Client: c.client, RunPod: c.pods.Run, Address: c.network.Address, Host: c.network.Host(), Serve: proxy.Update, Logger: log.Logger(),
	}))
	testkit.Run(t, c.objects.Run)
	t.Cleanup(func() {
		if text := log.String(); t.Failed() {
			t.Logf("the Pods:\n%s", text[max(0, len(text)-32<<10):])
		}
	})
	return c
}

// issueVolume plays cert-manager's CSI driver.
func (c *cluster) issueVolume(v *corev1.CSIVolumeSource, pod *corev1.Pod, dir string) error {
	if v.Driver != "csi.cert-manager.io" {
		return fmt.Errorf("driver %s: must be cert-manager's", v.Driver)
	}
	known := strings.NewReplacer("${POD_NAME}", pod.Name, "${POD_UID}", string(pod.UID), "${POD_NAMESPACE}", pod.Namespace)
	id, err := identity.Parse(known.Replace(v.VolumeAttributes["csi.cert-manager.io/uri-names"]))
	if err != nil {
		return err
	}
	var hosts []string
	if names := v.VolumeAttributes["csi.cert-manager.io/dns-names"]; names != "" {
		hosts = strings.Split(known.Replace(names), ",")
	}
	return c.issue(id, hosts, dir)
}

// issue writes a certificate as a Secret of type TLS has it.
func (c *cluster) issue(id identity.ID, hosts []string, dir string) error {
	if err := c.authority.Issue(dir, id, hosts, time.Now()); err != nil {
		return err
	}
	authority, err := os.ReadFile(filepath.Join(c.dir, devca.AuthorityCert))
	return errors.Join(err,
		os.Rename(filepath.Join(dir, devca.Cert), filepath.Join(dir, "tls.crt")), os.Rename(filepath.Join(dir, devca.Key), filepath.Join(dir, "tls.key")),
		os.WriteFile(filepath.Join(dir, "ca.crt"), authority, 0o600))
}

// chart returns the folder of a copy of the chart that installs on any API server: one that was built without a version
// says that it is v0.0.0.
func (c *cluster) chart() string {
	c.t.Helper()
	dir := filepath.Join(c.dir, "chart")
	testkit.NoError(c.t, os.CopyFS(dir, os.DirFS(filepath.Join(root, "deploy", "helm", "cascade"))))
	file := filepath.Join(dir, "Chart.yaml")
	text := string(testkit.Must(os.ReadFile(file)))
	without := regexp.MustCompile(`(?m)^kubeVersion:.*\n`).ReplaceAllString(text, "")
	if without == text {
		c.t.Fatal("the chart has no kubeVersion")
	}
	testkit.NoError(c.t, os.WriteFile(file, []byte(without), 0o600))
	return dir
}

// helm runs a command of Helm for the release.
func (c *cluster) helm(args ...string) {
	c.t.Helper()
	cmd := exec.Command(helmBinary(c.t), append(args, "--namespace", namespace)...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+c.dir, "HELM_CONFIG_HOME="+c.dir, "HELM_DATA_HOME="+c.dir, "KUBECONFIG="+c.kubeconfig)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("helm %v: %v\n%s", args, err, out)
	}
}

// cascade runs a command of operators in a Pod of the control plane, and returns what it prints.
func (c *cluster) cascade(pod string, args ...string) (string, error) {
	return c.pods.Exec(c.t.Context(), pod, "control", append([]string{programs + "/cascade"}, args...)...)
}

// status returns the state of a control plane.
func (c *cluster) status(pod string) (s control.Status, err error) {
	text, err := c.cascade(pod, "status", "--json")
	if i := strings.IndexByte(text, '{'); i >= 0 { // with a fault it exits with 1
		err = json.NewDecoder(strings.NewReader(text[i:])).Decode(&s)
	}
	return s, err
}

// manifests decodes the documents of a file of deploy into objects.
func manifests(t *testing.T, file string, objects ...any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy", file))
	testkit.NoError(t, err)
	docs := bytes.Split(text, []byte("\n---\n"))
	if len(docs) != len(objects) {
		t.Fatalf("deploy/%s has %d objects, want %d", file, len(docs), len(objects))
	}
	for i, doc := range docs {
		testkit.NoError(t, json.Unmarshal(testkit.Must(utilyaml.ToJSON(doc)), objects[i]))
	}
}

// deployment is the name of the Deployment of engines.
const deployment = "llama"

// deployEngines creates the example's Deployment and Service, with emulated engines in place of vLLM, and adds the migrator by the
// patch for users.
func (c *cluster) deployEngines() {
	c.t.Helper()
	ctx, in := c.t.Context(), c.client.AppsV1().Deployments(namespace)
	_, err := c.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "engine"}, Data: map[string]string{"steady.json": clusterSteady}}, metav1.CreateOptions{})
	testkit.NoError(c.t, err)
	var d appsv1.Deployment
	var s corev1.Service
	manifests(c.t, "kubernetes/example/vllm.yaml", &d, &s)
	_, err = c.client.CoreV1().Services(namespace).Create(ctx, &s, metav1.CreateOptions{})
	testkit.NoError(c.t, err)
	d.Spec.Replicas = new(int32) // none without a migrator
	d.Spec.Strategy.RollingUpdate = nil
	engine := &d.Spec.Template.Spec.Containers[0]
	engine.Command = []string{programs + "/cascade"}
	engine.Args = []string{"engine", "--model=m", "--context=16384", "--listen=127.0.0.1:8000", "--profile=/etc/engine/steady.json"}
	engine.VolumeMounts = []corev1.VolumeMount{{Name: "engine", MountPath: "/etc/engine"}}
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "engine", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "engine"}}}}}
	_, err = in.Create(ctx, &d, metav1.CreateOptions{})
	testkit.NoError(c.t, err)
	patch := testkit.Must(utilyaml.ToJSON(testkit.Must(os.ReadFile(filepath.Join(root, "deploy", "kubernetes", "sidecar", "migrator.yaml")))))
	_, err = in.Patch(ctx, deployment, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict})
	testkit.NoError(c.t, err)
}

// scale sets the number of engines.
func (c *cluster) scale(n int) {
	c.t.Helper()
	_, err := c.client.AppsV1().Deployments(namespace).Patch(c.t.Context(), deployment, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{})
	testkit.NoError(c.t, err)
}

// annotate changes the template of the engines' Pods, so that all are replaced.
func (c *cluster) annotate(value string) {
	c.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"restarted":%q}}}}}`, value)
	_, err := c.client.AppsV1().Deployments(namespace).Patch(c.t.Context(), deployment, types.MergePatchType, patch, metav1.PatchOptions{})
	testkit.NoError(c.t, err)
}

// engines returns the Pods of the engines.
func (c *cluster) engines() []corev1.Pod {
	list, err := c.client.CoreV1().Pods(namespace).List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=llama"})
	if err != nil {
		return nil
	}
	return list.Items
}

// deleteEngine deletes a Pod.
func (c *cluster) deleteEngine(name string) {
	c.t.Helper()
	testkit.NoError(c.t, c.client.CoreV1().Pods(namespace).Delete(c.t.Context(), name, metav1.DeleteOptions{}))
}
