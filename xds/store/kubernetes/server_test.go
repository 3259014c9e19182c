package kubernetes_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// real returns a real API server with a token.
func real(s *kubetest.Server, token string) api {
	return api{host: "https://" + s.Address, rest: rest.Config{BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: s.CAFile}}}
}

// TestServer runs the suites, and faults, on a real API server.
func TestServer(t *testing.T) {
	testkit.SkipSlow(t)
	server := kubetest.Start(t)
	a := real(server, server.Token)
	t.Run("conformance", func(t *testing.T) { testConformance(t, a) })
	t.Run("role", func(t *testing.T) { testRole(t, server) })
	t.Run("compacted", func(t *testing.T) { testCompacted(t, server, a) })
	t.Run("partition", func(t *testing.T) { testPartition(t, server, a) })
	suspend, resume := server.Suspend, server.Resume // bound before the restart: they must reach the new process
	t.Run("killed", func(t *testing.T) { testGone(t, a, server.Kill, server.Restart) })
	t.Run("suspended", func(t *testing.T) { testGone(t, a, suspend, resume) })
}

// testCompacted runs storetest.RunCompacted on an API server, whose etcd is compacted.
func testCompacted(t *testing.T, server *kubetest.Server, a api) {
	link := etcdtest.NewLink(t, server.Address)
	name := newName()
	storetest.RunCompacted(t, store.New(a.open(t, name)), store.New(a.through(link).open(t, name)), link, server.Etcd.Compact)
}

// gone is how long the API server is away.
const gone = 60 * time.Second

// testGone stops the API server for a minute: reads and writes fail in time and say why, and what
// was stored is there afterwards.
func testGone(t *testing.T, a api, stop, start func()) {
	name := newName()
	s, f := store.New(a.open(t, name)), storetest.Follow(t, store.New(a.open(t, name)))
	v := testkit.Must(s.CompareAndSwap(t.Context(), "", storetest.Object(1)))
	f.Await(1)
	stop()
	began, writes, longest := time.Now(), 0, time.Duration(0)
	if err := f.AwaitError(); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "check that the API server runs") {
		t.Errorf("the error of a watch is %v", err)
	}
	for time.Since(began) < gone {
		at := time.Now()
		_, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a write: %v", err)
		}
		writes, longest = writes+1, max(longest, time.Since(at))
		time.Sleep(time.Second)
	}
	start()
	back := time.Now()
	for {
		u := storetest.Read(t, s)
		if u.Err == nil && u.Object.Epoch == 2 { // a write that failed may be stored nevertheless
			v = u.Version
			break
		}
		next, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
		if err == nil {
			v = next
			break
		}
		if time.Since(back) > 30*time.Second {
			t.Fatal(err)
		}
	}
	f.Await(2)
	t.Logf("%d writes failed, the longest after %v; stored %v after the API server was back", writes, longest.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
	if longest > 10*time.Second {
		t.Errorf("a write took %v", longest)
	}
	_, err := s.CompareAndSwap(t.Context(), v, storetest.Object(3))
	testkit.NoError(t, err)
	f.Await(3)
}

// testPartition runs storetest.RunPartition on an API server.
func testPartition(t *testing.T, server *kubetest.Server, a api) {
	name := newName()
	storetest.RunPartition(t, 3, func() (store.Plans, storetest.Link) {
		link := etcdtest.NewLink(t, server.Address)
		return store.New(a.through(link).open(t, name)), link
	})
}

// roleFile is what users apply.
var roleFile = filepath.Join("..", "..", "..", "deploy", "kubernetes", "control-role.yaml")

// manifests returns the objects of the role's file, with a namespace instead of its own.
func manifests(t *testing.T, namespace string) (all []map[string]any) {
	t.Helper()
	text := string(testkit.Must(os.ReadFile(roleFile)))
	text = strings.ReplaceAll(text, "namespace: cascade", "namespace: "+namespace)
	for part := range strings.SplitSeq(text, "\n---\n") {
		var object map[string]any
		testkit.NoError(t, yaml.Unmarshal([]byte(part), &object))
		all = append(all, object)
	}
	return all
}

// testRole runs the suite of stores as a ServiceAccount that has nothing but the Role.
func testRole(t *testing.T, server *kubetest.Server) {
	// user returns the API server as the ServiceAccount of a new namespace.
	user := func(t *testing.T) (a api, namespace string) {
		namespace = newName()
		server.Do(http.MethodPost, "/api/v1/namespaces", []byte(`{"metadata":{"name":"`+namespace+`"}}`))
		for _, object := range manifests(t, namespace) {
			path := map[any]string{
				"Role":           "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/roles",
				"RoleBinding":    "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/rolebindings",
				"ServiceAccount": "/api/v1/namespaces/" + namespace + "/serviceaccounts",
			}[object["kind"]]
			server.Do(http.MethodPost, path+"?fieldValidation=Strict", testkit.Must(json.Marshal(object)))
		}
		var token struct{ Status struct{ Token string } }
		testkit.NoError(t, json.Unmarshal(server.Do(http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/cascade-control/token", []byte(`{"spec":{}}`)), &token))
		a = real(server, token.Status.Token)
		a.namespace = namespace
		// The authorizer learns of a new Role by a watch.
		testkit.WaitFor(t, "the Role is in force", func() bool {
			_, err := a.open(t, "fleet-a").ReadRoot(t.Context())
			return err == nil
		})
		return a, namespace
	}
	a, _ := user(t)
	use(t, a.open(t, "fleet-a"))
	if _, err := store.New(a.open(t, "fleet-b")).CompareAndSwap(t.Context(), "", storetest.Object(1)); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "control-role.yaml") {
		t.Errorf("the state of another fleet: %v", err)
	}
}

// use makes every request that a store makes.
func use(t *testing.T, c *kubernetes.Client) {
	s, v := store.New(c), store.Version("")
	for e := range policies.Epoch(3) {
		var err error
		v, err = s.CompareAndSwap(t.Context(), v, storetest.Object(e+1))
		testkit.NoError(t, err)
		testkit.NoError(t, s.Collect(t.Context(), time.Now()))
	}
	code := []byte("module")
	testkit.NoError(t, s.PutModule(t.Context(), sha256.Sum256(code), code))
	for range 2 {
		testkit.NoError(t, s.PutNote(t.Context(), "a", []byte("x")))
		testkit.NoError(t, s.Counters("a").SaveLast([]byte("x")))
	}
	if notes, err := s.AllNotes(t.Context(), time.Now()); err != nil || len(notes) != 1 {
		t.Errorf("%d notes, %v", len(notes), err)
	}
}

// TestRoleIsMinimal compares the Role with the requests that the store makes: it allows all of
// them, and each of its verbs is used.
func TestRoleIsMinimal(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	c := simulated(server).open(t, "fleet-a")
	storetest.Follow(t, store.New(c)).Await(0)
	use(t, c)
	testkit.WaitFor(t, "the store watches", func() bool { return server.Watches() == 1 })

	made := make(map[string]bool)
	for _, r := range server.Requests() {
		verb, path, _ := strings.Cut(r, " ")
		parts := strings.Split(path, "/")
		at := slices.Index(parts, "namespaces") + 2
		request := verb + " " + parts[at]
		if parts[at] != "configmaps" && len(parts) > at+1 {
			request += " " + parts[at+1]
		}
		made[request] = true
	}
	allowed := make(map[string]bool)
	role := manifests(t, "cascade")[0]
	for _, rule := range role["rules"].([]any) {
		r := rule.(map[string]any)
		for _, verb := range r["verbs"].([]any) {
			request := fmt.Sprint(verb, " ", r["resources"].([]any)[0])
			if names, ok := r["resourceNames"].([]any); ok {
				request += fmt.Sprint(" ", names[0])
			}
			allowed[request] = true
		}
	}
	for request := range made {
		if !allowed[request] {
			t.Errorf("the Role does not allow %q", request)
		}
	}
	for request := range allowed {
		if !made[request] {
			t.Errorf("the Role allows %q, which the store does not do", request)
		}
	}
}
