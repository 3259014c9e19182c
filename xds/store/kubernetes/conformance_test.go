package kubernetes_test

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names counts the names of this process, so that each test has one of its own.
var names atomic.Int64

func newName() string { return fmt.Sprint("fleet-", names.Add(1)) }

// api is an API server.
type api struct {
	host      string // URL
	rest      rest.Config
	namespace string // "" is default
}

// simulated returns the API server in memory.
func simulated(s *kubetest.Simulated) api { return api{host: s.URL} }

// open returns a client that is closed when the test ends.
func (a api) open(t testing.TB, name string) *kubernetes.Client {
	t.Helper()
	config := a.rest
	config.Host = a.host
	c := testkit.Must(kubernetes.New(kubernetes.Config{REST: &config, Namespace: cmp.Or(a.namespace, "default"), Name: name}))
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	return c
}

// through returns the API server behind a link.
func (a api) through(link *etcdtest.Link) api {
	scheme, _, _ := strings.Cut(a.host, "://")
	a.host = scheme + "://" + link.Endpoint
	return a
}

// TestConformance runs the suites of stores on the API in memory.
func TestConformance(t *testing.T) {
	t.Parallel()
	testConformance(t, simulated(kubetest.Simulate(t)))
}

// testConformance runs the suites of stores.
func testConformance(t *testing.T, a api) {
	storetest.Run(t, func(t *testing.T) func() store.Backend {
		name := newName()
		return func() store.Backend { return a.open(t, name) }
	})
}

// TestStateOfAnySize checks that a state which fits into the Lease's annotation is stored there, and one that would not
// once it is indented is stored beside it.
func TestStateOfAnySize(t *testing.T) {
	t.Parallel()
	s := store.New(simulated(kubetest.Simulate(t)).open(t, newName()))
	o, v, err := storetest.Object(1), store.Version(""), error(nil)
	for n := range 5000 {
		o.Weights = append(o.Weights, store.Weight{Replica: policies.ReplicaID(fmt.Sprint("w", n)), Weight: 2})
		if n%500 == 0 {
			if v, err = s.CompareAndSwap(t.Context(), v, o); err != nil {
				t.Fatalf("%d weights: %v", n+1, err)
			}
		}
	}
}

// TestLease checks that the Lease says who leads, and that what others add to its metadata stays.
func TestLease(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	name := newName()
	s, path := store.New(simulated(server).open(t, name)), "/apis/coordination.k8s.io/v1/namespaces/default/leases/"+name
	server.Edit(path, func(map[string]any) map[string]any { // a Lease without a plan
		return map[string]any{"metadata": map[string]any{"name": name, "annotations": map[string]any{"mine": "kept"}}}
	})
	o, v := storetest.Object(1), store.Version("")
	for _, holder := range []string{"cp-1", "", "cp-2"} {
		o.Lease.Holder = holder
		_, err := s.CompareAndSwap(t.Context(), v, o)
		testkit.NoError(t, err)
		server.Edit(path, func(lease map[string]any) map[string]any {
			if got := lease["spec"].(map[string]any)["holderIdentity"]; got != holder {
				t.Errorf("held by %v, want %q", got, holder)
			}
			if got := lease["metadata"].(map[string]any)["annotations"].(map[string]any)["mine"]; got != "kept" {
				t.Errorf("another's annotation is %v", got)
			}
			return lease
		})
		v = storetest.Read(t, s).Version
	}
}
