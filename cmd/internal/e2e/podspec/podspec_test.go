package podspec

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

func service(namespace, name, address string) corev1.Service {
	return corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// newPod returns a Pod in the namespace "n".
func newPod() Pod {
	return Pod{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}, Spec: corev1.PodSpec{NodeName: "node-7"}},
		IP:  netip.MustParseAddr("10.9.0.2"), Host: netip.MustParseAddr("10.9.0.1"),
		Services: []corev1.Service{
			service("default", "kubernetes", "10.0.0.1"), service("n", "my-own", "10.0.0.2"), service("n", "headless", corev1.ClusterIPNone), service("other", "s", "10.0.0.3"),
		},
	}
}

// TestResolve resolves variables, of which the later ones count, and references to them.
func TestResolve(t *testing.T) {
	got, err := newPod().Resolve(&corev1.Container{
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

// TestUnsupported checks that what is not known is refused, with its name.
func TestUnsupported(t *testing.T) {
	p := newPod()
	_, err := p.Resolve(&corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}}})
	testkit.WantError(t, err, "container c: variable V: only fields")
	_, err = p.Resolve(&corev1.Container{Name: "c", Env: []corev1.EnvVar{field("V", "metadata.annotations")}})
	testkit.WantError(t, err, "variable V: field metadata.annotations")
	for _, source := range []corev1.VolumeSource{{NFS: &corev1.NFSVolumeSource{}}, {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}}}}} {
		_, err = p.VolumeFiles(t.Context(), Source{}, &corev1.Volume{Name: "v", VolumeSource: source})
		testkit.WantError(t, err, "volume v: this kind of")
	}
}

// TestDownwardFiles checks the files of a projected volume that need no API server.
func TestDownwardFiles(t *testing.T) {
	item := corev1.DownwardAPIVolumeFile{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}
	files, err := newPod().VolumeFiles(t.Context(), Source{}, &corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{item}}}},
	}}})
	if err != nil || len(files) != 1 || string(files["name"]) != "n" {
		t.Errorf("%q, %v", files, err)
	}
}
