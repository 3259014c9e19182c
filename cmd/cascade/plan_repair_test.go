package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// following is the admin server of a daemon that follows a plan.
func following(t *testing.T, plans ...policies.Plan) string {
	mux := http.NewServeMux()
	mux.Handle("GET /plan", planHandler(func() []policies.Plan { return plans }))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// TestPlanRepair rebuilds a corrupt plan.json from the newest plan that a migrator or a proxy
// follows, and changes nothing where there is nothing to repair or nothing to repair it with.
func TestPlanRepair(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "fleet.yaml")
	replace(t, path, "state: state\n"+watched)
	plan := filepath.Join(dir, "state", "plan.json")
	testkit.NoError(t, os.Mkdir(filepath.Dir(plan), 0o700))
	repair := func(args ...string) (int, string) {
		return runFor(t.Context(), append([]string{"plan", "repair", "-c", path}, args...)...)
	}
	of := func(epoch policies.Epoch, ids ...policies.ReplicaID) policies.Plan {
		p := policies.OneStagePlan("m", ids)
		p.Epoch = epoch
		return p
	}
	corrupt := []byte(`{"format": 2, "epo`)
	testkit.NoError(t, os.WriteFile(plan, corrupt, 0o600))
	if code, text := repair("--from", "http://127.0.0.1:1"); code != 1 || !strings.Contains(text, "no migrator and no proxy named a plan") {
		t.Errorf("no daemon: %d %s", code, text)
	}
	if got := testkit.Must(os.ReadFile(plan)); string(got) != string(corrupt) {
		t.Errorf("the file was changed: %s", got)
	}

	old, newest, other := following(t, of(7, "r0")), following(t, of(9, "r0", "r1")), following(t, policies.Plan{Model: "m", Epoch: 99})
	code, text := repair("--from", old, "--from", newest, "--from", other)
	if code != 0 || !strings.Contains(text, "m: epoch 9, 1 stage") || !strings.Contains(text, "kept as corrupt/") {
		t.Fatalf("%d %s", code, text)
	}
	u := <-store.New(testkit.Must(store.NewFile(filepath.Dir(plan)))).Watch(t.Context())
	if u.Err != nil || u.Object.Epoch != 9 || len(u.Object.Plans) != 1 || len(u.Object.Plans[0].Stages[0].Replicas) != 2 {
		t.Errorf("%+v", u)
	}
	if code, text := repair("--from", newest); code != 1 || !strings.Contains(text, "nothing to repair") {
		t.Errorf("a good file: %d %s", code, text)
	}
	testkit.NoError(t, os.WriteFile(plan, []byte(`{"format": 3, "color": "red"}`), 0o600))
	if code, text := repair("--from", newest); code != 1 || !strings.Contains(text, "written by another version") {
		t.Errorf("a newer file: %d %s", code, text)
	}
	testkit.NoError(t, os.Remove(plan))
	testkit.NoError(t, os.Mkdir(plan, 0o700)) // a file that the system does not let us read
	if code, text := repair("--from", newest); code != 1 || !strings.Contains(text, "let this user read the file") {
		t.Errorf("an unreadable file: %d %s", code, text)
	}
}

// TestPlanRepairEtcd does the same in etcd.
func TestPlanRepairEtcd(t *testing.T) {
	cluster := etcdtest.Start(t, etcdtest.Config{})
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	replace(t, path, "state: etcd://"+cluster.Members[0].Endpoint+"/cascade/a\n"+watched)
	repair := func(from string) (int, string) {
		return runFor(t.Context(), "plan", "repair", "-c", path, "--from", from)
	}
	newest := policies.OneStagePlan("m", []policies.ReplicaID{"r0"})
	newest.Epoch = 9
	from, raw := following(t, newest), cluster.Client()
	put := func(key, text string) {
		t.Helper()
		_, err := raw.Put(t.Context(), "/cascade/a/"+key, text)
		testkit.NoError(t, err)
	}
	put("root", "corrupt")
	code, text := repair(from)
	if code != 0 || !strings.Contains(text, "m: epoch 9, 1 stage") || !strings.Contains(text, "kept as corrupt/") {
		t.Fatalf("%d %s", code, text)
	}
	if code, text := repair(from); code != 1 || !strings.Contains(text, "nothing to repair") {
		t.Errorf("a good plan: %d %s", code, text)
	}
	put("root", `{"format": 3, "color": "red"}`)
	if code, text := repair(from); code != 1 || !strings.Contains(text, "written by another version") {
		t.Errorf("a newer plan: %d %s", code, text)
	}
	cluster.Members[0].Kill()
	if code, text := repair(from); code != 1 || !strings.Contains(text, "the store does not answer") {
		t.Errorf("no etcd: %d %s", code, text)
	}
}
