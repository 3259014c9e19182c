package processes

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// TestKubernetesGone keeps the plan in Kubernetes, whose API server is killed for a minute, then
// suspended, under load: no request fails, running streams go on, the control planes say what is
// wrong, one that restarts meanwhile waits, and planning resumes with one leader.
func TestKubernetesGone(t *testing.T) {
	skipSlow(t)
	server := kubetest.Start(t)
	server.Do(http.MethodPost, "/api/v1/namespaces", []byte(`{"metadata":{"name":"cascade"}}`))
	binary, kubeconfig := buildKube(t), writeKubeconfig(t, server, server.Address)
	f := newFleet(t, setup{replicas: 2, planes: 2, controlBinary: binary, controlArgs: []string{"--kubeconfig", kubeconfig},
		edit: func(c *config.Fleet) { c.State = "kubernetes://cascade/fleet-a" }})
	f.planes[0].await("leads", isLeading)
	f.planes[1].await("follows a", isFollowing("a"))
	client, err := kubernetes.New(kubernetes.Config{REST: testkit.Must(clientcmd.BuildConfigFromFlags("", kubeconfig)), Namespace: "cascade", Name: "fleet-a"})
	testkit.NoError(t, err)
	defer client.Close()
	plans := f.watchStore(store.New(client))
	f.endureOutages("the API server", []outage{
		{name: "killed", lasts: time.Minute, inject: server.Kill, heal: server.Restart, object: "read", fault: "stored plan cannot be read", restart: true},
		{name: "suspended", lasts: 30 * time.Second, inject: server.Suspend, heal: server.Resume, object: "read", fault: "stored plan cannot be read"},
	})
	plans.stop()
	t.Logf("the plan object was written %d times, epoch %d; leaders %q", plans.writes, plans.last.Epoch, plans.held())
	f.awaitEmpty(f.replicas...)
}

// buildKube builds cascade-kube and returns its path.
func buildKube(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "cascade-kube")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "github.com/cascadeinfer/cascade/cmd/cascade-kube").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// writeKubeconfig writes a file by which a client reaches an API server at an address.
func writeKubeconfig(t *testing.T, server *kubetest.Server, address string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q, tls-server-name: %s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: %q}}]
`, address, server.CAFile, kubetest.ServerName, server.Token), 0o600))
	return path
}
