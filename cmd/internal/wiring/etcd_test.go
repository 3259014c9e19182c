package wiring

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestControlOnEtcd checks that the stores of several control planes whose state is in etcd are
// the same, that each has counters of its own, and that no file is written.
func TestControlOnEtcd(t *testing.T) {
	cluster := etcdtest.Start(t, etcdtest.Config{})
	state := "etcd://" + cluster.Members[0].Endpoint + "/cascade/a"
	fleet := load(t, "state: "+state+"\ncontrol: {name: a, peers: [\"127.0.0.1:18100\"]}\n")
	a, err := fleet.Control(nil)
	testkit.NoError(t, err)
	other := fleet
	other.Fleet.Control.Name = "b"
	b, err := other.Control(nil)
	testkit.NoError(t, err)
	defer func() {
		testkit.NoError(t, a.Store.Close())
		testkit.NoError(t, b.Store.Close())
	}()
	v, err := a.Store.CompareAndSwap(t.Context(), "", store.Object{Epoch: 3})
	testkit.NoError(t, err)
	if u := <-b.Store.Watch(t.Context()); u.Err != nil || u.Version != v || u.Object.Epoch != 3 {
		t.Errorf("the other control plane reads %+v", u)
	}
	testkit.NoError(t, a.Store.PutModule(t.Context(), sha256.Sum256([]byte("module")), []byte("module")))
	if code, err := b.Store.Module(t.Context(), sha256.Sum256([]byte("module"))); err != nil || string(code) != "module" {
		t.Errorf("module %q, %v", code, err)
	}
	testkit.NoError(t, a.Store.Counters("a").Save([]byte("of a")))
	if data, err := b.Store.Counters("b").Load(); err != nil || data != nil {
		t.Errorf("b has the counters %q, %v", data, err)
	}
	if data, err := a.Store.Counters("a").Load(); err != nil || string(data) != "of a" {
		t.Errorf("a has the counters %q, %v", data, err)
	}
	testkit.NoError(t, a.Store.PutNote(t.Context(), "a", []byte("plane")))
	if notes := fleet.PlaneNotes(t.Context()); len(notes) != 1 || string(notes[0]) != "plane" {
		t.Errorf("notes of control planes: %q", notes)
	}
	entries, err := os.ReadDir(fleet.Dir)
	testkit.NoError(t, err)
	if len(entries) != 1 {
		t.Errorf("files beside the fleet file: %v", entries)
	}
}

// TestCheckEtcd checks that "config check" names the files of the connection that are missing or
// invalid, and repeats no password.
func TestCheckEtcd(t *testing.T) {
	fleet := load(t, "state: etcd://127.0.0.1:2379/cascade\netcd: {ca: ca.pem, user: cascade, password_file: password}\n")
	check := func(want ...string) {
		t.Helper()
		var got []string
		for _, e := range fleet.Check() {
			got = append(got, e.Path)
			if strings.Contains(e.Error(), "s3cret") {
				t.Error(e)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("errors of %q, want %q", got, want)
		}
	}
	check("etcd.password_file", "etcd")
	path := filepath.Join(fleet.Dir, "password")
	writeFile(t, path, "\n")
	check("etcd.password_file", "etcd")
	writeFile(t, path, "s3cret\n")
	check("etcd")
	writeFile(t, filepath.Join(fleet.Dir, "ca.pem"), "s3cret")
	check("etcd")
	if password, err := fleet.etcdPassword(); err != nil || password != "s3cret" {
		t.Errorf("password %q, %v", password, err)
	}
}

// TestEtcdTLS connects to an etcd that asks for certificates, with those of the fleet file.
func TestEtcdTLS(t *testing.T) {
	testkit.SkipSlow(t)
	dir := t.TempDir()
	authority, err := devca.New("cascade.test", time.Now())
	testkit.NoError(t, err)
	testkit.NoError(t, authority.Save(dir))
	for _, name := range []string{"server", "client"} {
		id := identity.ID{TrustDomain: "cascade.test", Role: identity.Control, Name: name}
		testkit.NoError(t, authority.Issue(filepath.Join(dir, name), id, []string{"127.0.0.1"}, time.Now()))
	}
	path := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	cluster := etcdtest.Start(t, etcdtest.Config{Scheme: "https", Args: []string{
		"--cert-file", path("server", devca.Cert), "--key-file", path("server", devca.Key), "--client-cert-auth", "--trusted-ca-file", path(devca.AuthorityCert),
	}})
	state := "state: etcd://" + cluster.Members[0].Endpoint + "/cascade/a\n"
	swap := func(login string) error {
		fleet := load(t, state+"etcd: {"+login+"}\n")
		c, err := fleet.Control(nil)
		testkit.NoError(t, err)
		defer c.Store.Close()
		_, err = c.Store.CompareAndSwap(t.Context(), "", store.Object{Epoch: 1})
		return err
	}
	ca, pair := "ca: "+path(devca.AuthorityCert), fmt.Sprintf(", cert: %s, key: %s", path("client", devca.Cert), path("client", devca.Key))
	for login, want := range map[string]string{"": "the store does not answer", ca: "the store does not answer", "ca: " + path("client", devca.Cert) + pair: "unknown authority"} {
		if err := swap(login); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %q: %v, want %q", login, err, want)
		}
	}
	testkit.NoError(t, swap(ca+pair))
}

// TestNoKubernetes checks that a state in Kubernetes is refused here, and taken from a caller that
// has opened it.
func TestNoKubernetes(t *testing.T) {
	fleet := load(t, "state: kubernetes://cascade/fleet-a\n")
	if _, err := fleet.Control(nil); !errors.Is(err, ErrNoKubernetes) || !strings.Contains(err.Error(), "run cascade-kube control") {
		t.Errorf("no client: %v", err)
	}
	if dir := fleet.StateDir(); dir != "" {
		t.Errorf("the state is in the directory %q", dir)
	}
	memory := store.New(store.NewMemory())
	c, err := fleet.ControlWith(nil, memory)
	testkit.NoError(t, err)
	if c.Store != memory {
		t.Error("the state of the caller is not used")
	}
	b := &closing{Backend: store.NewMemory()}
	fleet.Fleet.Control.AdminUsers = []string{"no such user"}
	if _, err := fleet.ControlWith(nil, store.New(b)); err == nil || !b.closed {
		t.Errorf("%v; closed: %v", err, b.closed)
	}
}

// closing is a backend that remembers its end.
type closing struct {
	store.Backend
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}
