package clustertest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func serviceObject(namespace, name, address string) corev1.Service {
	return corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// newScheduledPod returns a Pod in the namespace "n".
func newScheduledPod() ScheduledPod {
	return ScheduledPod{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}, Spec: corev1.PodSpec{NodeName: "node-7"}},
		IP:  netip.MustParseAddr("10.9.0.2"), Host: netip.MustParseAddr("10.9.0.1"),
		Services: []corev1.Service{
			serviceObject("default", "kubernetes", "10.0.0.1"), serviceObject("n", "my-own", "10.0.0.2"), serviceObject("n", "headless", corev1.ClusterIPNone), serviceObject("other", "s", "10.0.0.3"),
		},
	}
}

// TestResolve resolves variables, of which the later ones count, and references to them.
func TestResolve(t *testing.T) {
	got, err := newScheduledPod().Resolve(&corev1.Container{
		Command: []string{"run", "$(IP):80"},
		Args:    []string{"--node=$(NODE)", "$(UNKNOWN)", "$(LATER)", "$(MY_OWN_SERVICE_PORT)"},
		Env: []corev1.EnvVar{
			field("IP", "status.podIP"), field("NODE", "spec.nodeName"), field("HOST", "status.hostIP"),
			{Name: "A", Value: "$(IP)/$(LATER)"}, {Name: "LATER", Value: "1"}, {Name: "LATER", Value: "2"},
		},
	})
	testkit.NoError(t, err)
	want := "{[{KUBERNETES_SERVICE_HOST 10.0.0.1} {KUBERNETES_SERVICE_PORT 80} {MY_OWN_SERVICE_HOST 10.0.0.2} {MY_OWN_SERVICE_PORT 80}" +
		" {IP 10.9.0.2} {NODE node-7} {HOST 10.9.0.1} {A 10.9.0.2/$(LATER)} {LATER 1} {LATER 2}] [run 10.9.0.2:80] [--node=node-7 $(UNKNOWN) 2 80]}"
	if fmt.Sprint(got) != want {
		t.Errorf("resolved:\n%v\nwant:\n%s", got, want)
	}
	if value, ok := got.Lookup("LATER"); value != "2" || !ok {
		t.Errorf("LATER is %q, %v", value, ok)
	}
	if value, ok := got.Lookup("NONE"); ok {
		t.Errorf("NONE is %q", value)
	}
}

// authority returns a volume with items of the authority of the API server.
func authority(items ...corev1.KeyToPath) *corev1.Volume {
	source := &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: items}
	return &corev1.Volume{Name: "ca", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ConfigMap: source}}}}}
}

// TestFiles checks the files of ConfigMaps: text, bytes, and the authority of the API server at the path that is
// asked for; and a field of the Pod.
func TestFiles(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/n/configmaps/m" {
			t.Errorf("path %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind": "ConfigMap", "apiVersion": "v1", "data": {"text": "a"}, "binaryData": {"bytes": "/w=="}}`)
	}))
	t.Cleanup(api.Close)
	ca := filepath.Join(t.TempDir(), "ca")
	testkit.NoError(t, os.WriteFile(ca, []byte("PEM"), 0o600))
	from := Source{Client: testkit.Must(kubernetes.NewForConfig(&rest.Config{Host: api.URL})), CAFile: ca}
	for want, v := range map[string]*corev1.Volume{
		`map["bytes":"\xff" "text":"a"]`: {VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}}}},
		`map["ca.crt":"PEM"]`:            authority(),
		`map["other":"PEM"]`:             authority(corev1.KeyToPath{Key: "ca.crt", Path: "other"}),
		`map["name":"n"]`: {VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
			}}}},
		}}},
	} {
		files, err := newScheduledPod().VolumeFiles(t.Context(), from, v)
		testkit.NoError(t, err)
		if got := fmt.Sprintf("%q", files); got != want {
			t.Errorf("files %s, want %s", got, want)
		}
	}
}

// TestUnsupported checks that what is not known is refused, with its name.
func TestUnsupported(t *testing.T) {
	p := newScheduledPod()
	_, err := p.Resolve(&corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}}})
	testkit.WantError(t, err, "container c: variable V: only fields")
	_, err = p.Resolve(&corev1.Container{Name: "c", Env: []corev1.EnvVar{field("V", "metadata.annotations")}})
	testkit.WantError(t, err, "variable V: field metadata.annotations")
	for _, c := range []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{}}}, {WorkingDir: "/"}} {
		c.Name = "c"
		_, err = p.Resolve(&c)
		testkit.WantError(t, err, "container c: envFrom and workingDir are not")
	}
	_, err = p.Resolve(&corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{MountPath: "/run/m", SubPathExpr: "$(A)"}}})
	testkit.WantError(t, err, "container c: mount path /run/m: subPathExpr is not")
	items := []corev1.KeyToPath{{Key: "k", Path: "p"}}
	for _, source := range []corev1.VolumeSource{{ConfigMap: &corev1.ConfigMapVolumeSource{Items: items}}, {Secret: &corev1.SecretVolumeSource{Items: items}}} {
		_, err = p.VolumeFiles(t.Context(), Source{}, &corev1.Volume{Name: "v", VolumeSource: source})
		testkit.WantError(t, err, "volume v: items of ConfigMaps and Secrets are not")
	}
	_, err = p.VolumeFiles(t.Context(), Source{CAFile: os.DevNull}, authority(items...))
	testkit.WantError(t, err, "volume ca: ConfigMap kube-root-ca.crt has no key k")
	for _, source := range []corev1.VolumeSource{{NFS: &corev1.NFSVolumeSource{}}, {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}}}}} {
		_, err = p.VolumeFiles(t.Context(), Source{}, &corev1.Volume{Name: "v", VolumeSource: source})
		testkit.WantError(t, err, "volume v: this kind of")
	}
}
