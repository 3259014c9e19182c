package kubernetes

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// objectPaths are the paths of objects, by kind: %[1]s is the namespace, %[2]s the name.
var objectPaths = map[string]string{
	"CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/%[2]s",
	"Deployment":               "/apis/apps/v1/namespaces/%[1]s/deployments/%[2]s",
	"DestinationRule":          "/apis/networking.istio.io/v1/namespaces/%[1]s/destinationrules/%[2]s",
	"EnvoyFilter":              "/apis/networking.istio.io/v1alpha3/namespaces/%[1]s/envoyfilters/%[2]s",
	"Gateway":                  "/apis/networking.istio.io/v1/namespaces/%[1]s/gateways/%[2]s",
	"HTTPRoute":                "/apis/gateway.networking.k8s.io/v1/namespaces/%[1]s/httproutes/%[2]s",
	"InferencePool":            "/apis/inference.networking.k8s.io/v1/namespaces/%[1]s/inferencepools/%[2]s",
	"Namespace":                "/api/v1/namespaces/%[2]s",
	"Service":                  "/api/v1/namespaces/%[1]s/services/%[2]s",
	"ServiceEntry":             "/apis/networking.istio.io/v1/namespaces/%[1]s/serviceentries/%[2]s",
	"VirtualService":           "/apis/networking.istio.io/v1/namespaces/%[1]s/virtualservices/%[2]s",
}

// applyManifest applies the objects of a manifest, and returns the paths at which they are.
func applyManifest(t testing.TB, client kubernetes.Interface, manifest []byte) (paths []string) {
	t.Helper()
	for _, doc := range bytes.Split(manifest, []byte("\n---\n")) {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		testkit.NoError(t, yaml.Unmarshal(doc, &o))
		if o.Kind == "" {
			continue // comments
		}
		format := objectPaths[o.Kind]
		if format == "" {
			t.Fatalf("the test does not know where a %s is", o.Kind)
		}
		path := fmt.Sprintf(format, o.Metadata.Namespace, o.Metadata.Name)
		applyAt(t, client, path, doc)
		paths = append(paths, path)
	}
	return paths
}

// applyAt applies an object as soon as its definition is served, a moment after that was applied.
func applyAt(t testing.TB, client kubernetes.Interface, path string, doc []byte) {
	t.Helper()
	var err error
	defer func() {
		if err != nil {
			t.Logf("%s: %v", path, err)
		}
	}()
	testkit.WaitFor(t, "the API server to accept "+path, func() bool {
		err = client.CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath(path).Param("fieldManager", "cascade-test").Param("force", "true").Body(doc).Do(t.Context()).Error()
		return err == nil
	})
}

// applyDefinitions applies the CustomResourceDefinitions in a folder of a conformanceCache.
func applyDefinitions(t testing.TB, client kubernetes.Interface, folder string) {
	t.Helper()
	files := testkit.Must(filepath.Glob(filepath.Join(folder, "*.yaml")))
	if len(files) == 0 {
		t.Fatalf("%s has no definitions", folder)
	}
	for _, file := range files {
		applyManifest(t, client, testkit.Must(os.ReadFile(file)))
	}
}

// writeKubeconfig writes a file that says how to reach an API server at an address, as a user who may do everything, or as
// another one.
func writeKubeconfig(path string, s *kubetest.Server, address, as string) error {
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q, tls-server-name: 127.0.0.1}}]
users: [{name: u, user: {token: %q, as: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`, address, s.CAFile, s.Token, as), 0o600)
}

// deleteObject deletes the object at a path.
func deleteObject(t testing.TB, client kubernetes.Interface, path string) {
	t.Helper()
	testkit.NoError(t, client.CoreV1().RESTClient().Delete().AbsPath(path).Do(t.Context()).Error())
}
