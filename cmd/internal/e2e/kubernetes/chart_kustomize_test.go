package kubernetes

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

var update = flag.Bool("update", false, "write deploy/kustomize/base/cascade.yaml anew")

// ofHelm are lines of a rendering that say where it comes from.
var ofHelm = []string{"# Source: ", "    app.kubernetes.io/managed-by: ", "    helm.sh/chart: "}

// TestKustomizeBase: the base is what the chart renders with its defaults, but for the lines of ofHelm.
func TestKustomizeBase(t *testing.T) {
	var want strings.Builder
lines:
	for line := range strings.Lines(render(t)) {
		for _, prefix := range ofHelm {
			if strings.HasPrefix(line, prefix) {
				continue lines
			}
		}
		want.WriteString(line)
	}
	path := filepath.Join(root, "deploy", "kustomize", "base", "cascade.yaml")
	if *update {
		testkit.NoError(t, os.WriteFile(path, []byte(want.String()), 0o644))
	}
	if got := string(testkit.Must(os.ReadFile(path))); got != want.String() {
		t.Errorf("%s is not what the chart renders; run this test with -update", path)
	}
}

// kustomizations are the folders that users build, and one with each component.
var kustomizations = []string{"deploy/kustomize/base", "deploy/kubernetes/example", "deploy/kubernetes/daemonset", "cmd/internal/e2e/kubernetes/testdata/all-components"}

// kustomize returns what a folder builds.
func kustomize(t *testing.T, folder string) string {
	t.Helper()
	testkit.SkipSlow(t)
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		testkit.Skip(t, testkit.Unavailable{What: "there is no kubectl", Remedy: "install it"})
	}
	out, err := exec.Command(kubectl, "kustomize", filepath.Join(root, folder)).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl kustomize %s: %v\n%s", folder, err, out)
	}
	return string(out)
}

// TestKustomizations builds every kustomization; its objects are in one namespace.
func TestKustomizations(t *testing.T) {
	for _, folder := range kustomizations {
		all := objects(t, kustomize(t, folder))
		if len(all) == 0 {
			t.Errorf("%s: no objects", folder)
		}
		for _, o := range all {
			if o.text("metadata", "namespace") == "" {
				t.Errorf("%s: %v has no namespace", folder, o)
			}
		}
	}
}

// TestSidecar: the component leaves the engine's container as it is but for probes and the hook, and adds the migrator
// as a sidecar.
func TestSidecar(t *testing.T) {
	o := findObject(t, kustomize(t, "deploy/kubernetes/example"), "Deployment", "llama")
	pod := podSpec(o)
	engine := object(pod["containers"].([]any)[0].(map[string]any))
	migrator := object(pod["initContainers"].([]any)[0].(map[string]any))
	if len(pod["containers"].([]any)) != 1 || engine.text("name") != "vllm" || !strings.HasPrefix(engine.text("image"), "vllm/") || engine["args"] == nil {
		t.Errorf("engine: %v", engine)
	}
	if _, ok := engine["readinessProbe"]; ok || object(engine["livenessProbe"].(map[string]any))["httpGet"] != nil {
		t.Errorf("the kubelet's HTTP probes do not reach an engine on loopback: %v", engine)
	}
	if migrator.text("name") != "cascade-migrator" || migrator.text("restartPolicy") != "Always" {
		t.Errorf("migrator: %v", migrator)
	}
	if label := o.text("spec", "template", "metadata", "labels", "app.cascadeinfer.com/component"); label != "migrator" {
		t.Errorf("label %q: network policies select migrators by it", label)
	}
}
