package processes

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/etcd"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// The links of a namespace with the store: of the test, and of each control plane.
const (
	ownLink = iota
	linkOfA
	linkOfB
	storeLinks
)

// addressOf returns the address of the store by the link of a control plane.
func addressOf(n *testkit.Namespace, plane, address string) string {
	_, port, _ := net.SplitHostPort(address)
	return net.JoinHostPort(n.Links[map[string]int{"a": linkOfA, "b": linkOfB}[plane]].Address, port)
}

// TestKubernetesPartition cuts the leading control plane off from the API server, which runs in a network namespace.
func TestKubernetesPartition(t *testing.T) {
	skipSlow(t)
	n := testkit.NewNamespace(t, storeLinks)
	server := kubetest.StartIn(t, n)
	server.Do(http.MethodPost, "/api/v1/namespaces", []byte(`{"metadata":{"name":"cascade"}}`))
	f := newFleet(t, setup{replicas: 2, planes: 2, controlBinary: buildKube(t),
		planeArgs: func(name string) []string {
			return []string{"--kubeconfig", writeKubeconfig(t, server, addressOf(n, name, server.Address))}
		},
		edit: func(c *config.Fleet) { c.State = "kubernetes://cascade/fleet-a" }})
	client, err := kubernetes.New(kubernetes.Config{REST: testkit.Must(clientcmd.BuildConfigFromFlags("", writeKubeconfig(t, server, server.Address))), Namespace: "cascade", Name: "fleet-a"})
	testkit.NoError(t, err)
	defer client.Close()
	f.endurePartition(n, f.watchStore(store.New(client)))
}

// TestEtcdPartition cuts the leading control plane off from etcd, which runs in a network namespace.
func TestEtcdPartition(t *testing.T) {
	skipSlow(t)
	n, dir := testkit.NewNamespace(t, storeLinks), t.TempDir()
	// Off loopback etcd is reached by TLS.
	authority, err := devca.New("cascade.test", time.Now())
	testkit.NoError(t, err)
	testkit.NoError(t, authority.Save(dir))
	var names []string
	for _, l := range n.Links {
		names = append(names, l.Address)
	}
	testkit.NoError(t, authority.Issue(filepath.Join(dir, "server"), identity.ID{TrustDomain: "cascade.test", Role: identity.Control, Name: "server"}, names, time.Now()))
	ca := filepath.Join(dir, devca.AuthorityCert)
	member := etcdtest.Start(t, etcdtest.Config{Namespace: n, Scheme: "https", Args: []string{
		"--cert-file", filepath.Join(dir, "server", devca.Cert), "--key-file", filepath.Join(dir, "server", devca.Key),
	}}).Members[0]
	f := newFleet(t, setup{replicas: 2, planes: 2, planeEdit: func(name string, c *config.Fleet) {
		c.State, c.Etcd.CA = "etcd://"+addressOf(n, name, member.Endpoint)+"/cascade/test", ca
	}})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(testkit.Must(os.ReadFile(ca)))
	client, err := etcd.New(etcd.Config{Endpoints: []string{member.Endpoint}, Prefix: "/cascade/test", Credentials: credentials.NewTLS(&tls.Config{RootCAs: pool})})
	testkit.NoError(t, err)
	defer client.Close()
	f.endurePartition(n, f.watchStore(store.New(client)))
}

// endurePartition takes the link between the leader, a, and the store down under load, and up again. The other control
// plane leads within the time of the lease, and plans; a has stepped down before, and says why; at no time do
// both lead; and no request fails.
func (f *fleet) endurePartition(n *testkit.Namespace, plans *record) {
	t, a, b := f.T, f.planes[0], f.planes[1]
	t.Helper()
	a.await("leads", isLeading)
	b.await("follows a", isFollowing("a"))
	load := f.newLoad(6, 250, 300, 1000, 4000)
	load.WaitForRequests(10)
	plans.held()
	stop := f.watchLeaders()
	t.Cleanup(stop)

	n.Links[linkOfA].Down()
	heart, at := newPulse(t), time.Now()
	heart.within(t, "the leader is cut off; the other has the lease after", plans.await("b").Sub(at), takeover)
	b.await("leads", isLeading)
	a.await("says that the store does not answer, and does not lead", func(s control.Status) bool { return !s.Planner.Leads && storeFault(s, "read") })
	b.cascade("drain", "r0", "--wait", "--timeout", patience.String())
	b.cascade("drain", "--undo", "r0")
	if text, code := commandCode("drain", "r1", "--control", "http://"+a.admin); code == 0 {
		t.Errorf("the control plane that is cut off accepts a drain: %s", text)
	}
	load.WaitForRequests(20)

	n.Links[linkOfA].Up()
	at = time.Now()
	a.await("follows b", func(s control.Status) bool { return isFollowing("b")(s) && !storeFault(s, "") })
	t.Logf("the link is up: a follows after %v", time.Since(at))
	a.cascade("drain", "--undo", "r1") // which may have been stored after all
	stop()
	load.WaitForRequests(10)
	load.Stop()
	load.Report()
	plans.stop()
	if got := plans.held(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the lease was held by %q, want a and then b", got)
	}
	f.awaitEmpty(f.replicas...)
}

// watchLeaders checks, until the function that it returns is called, that the two control planes do not both lead: that
// none leads before and after a time at which the other does.
func (f *fleet) watchLeaders() (stop func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		looks, a, b := 0, f.planes[0], f.planes[1]
		leads := func(p *plane) bool { s, err := p.status(); return err == nil && s.Planner.Leads }
		for {
			if leads(a) && leads(b) && leads(a) {
				f.T.Error("two control planes lead")
			}
			looks++
			select {
			case <-quit:
				f.T.Logf("looked %d times who leads", looks)
				return
			case <-time.After(tick):
			}
		}
	})
	return sync.OnceFunc(func() { close(quit); wg.Wait() })
}
