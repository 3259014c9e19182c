package kubernetes_test

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// TestLostAnswers loses the answers of requests that were executed: the write succeeds, and is
// made once.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	s := simulated(server).open(t, newName()).Plan()
	var lost atomic.Int64
	server.LoseAnswers(func(r *http.Request) bool { return r.Method != http.MethodGet && lost.Add(1)%2 == 1 }) // the first of two
	v := store.Version("")
	for e := policies.Epoch(1); e <= 3; e++ {
		var err error
		if v, err = s.CompareAndSwap(t.Context(), v, storetest.Object(e)); err != nil {
			t.Fatal(err)
		}
	}
	if lost.Load() != 12 { // three times a ConfigMap and the Lease, twice each
		t.Errorf("%d requests", lost.Load())
	}
	server.LoseAnswers(nil)
	if u := <-storetest.Follow(t, s).Updates; u.Err != nil || u.Version != v || u.Object.Epoch != 3 {
		t.Errorf("stored is epoch %d, version %q, %v, want 3, %q", u.Object.Epoch, u.Version, u.Err, v)
	}
	if stored := server.Paths("-plan-"); len(stored) != 3 {
		t.Errorf("stored are %q", stored)
	}
}

// TestReplacedWhileRead replaces the plan, and removes the former one, between the two requests of
// a read, which then returns the new one.
func TestReplacedWhileRead(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	c := simulated(server).open(t, newName())
	s, reader := c.Plan(), simulated(server).open(t, c.Name()).Plan()
	v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	former := server.Paths("-plan-")[0]
	var once sync.Once
	server.Before(func(r *http.Request) int {
		if r.Method == http.MethodGet && r.URL.Path == former {
			once.Do(func() {
				if _, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2)); err != nil {
					t.Error(err)
				}
				server.Edit(former, func(map[string]any) map[string]any { return nil })
			})
		}
		return 0
	})
	if got, err := reader.Read(t.Context()); err != nil || got.Epoch != 2 {
		t.Errorf("epoch %d, %v, want 2", got.Epoch, err)
	}
}

// TestRefused checks what the store says when the API server refuses requests or fails.
func TestRefused(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	c := simulated(server).open(t, newName())
	s := c.Plan()
	v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	for code, want := range map[int]string{
		http.StatusForbidden:           "control-role.yaml",
		http.StatusUnauthorized:        "check the token",
		http.StatusServiceUnavailable:  "check that the API server runs",
		http.StatusInternalServerError: "check that the API server runs",
	} {
		server.Before(func(*http.Request) int { return code })
		_, read := s.Read(t.Context())
		_, write := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
		for _, err := range []error{read, write} {
			if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v, want %q", code, err, want)
			}
		}
	}
	// One failure in between is no error.
	var n atomic.Int64
	server.Before(func(*http.Request) int {
		if n.Add(1)%2 == 1 {
			return http.StatusServiceUnavailable
		}
		return 0
	})
	_, err = s.CompareAndSwap(t.Context(), v, storetest.Object(2))
	testkit.NoError(t, err)
	server.Before(nil)
	if got, err := s.Read(t.Context()); err != nil || got.Epoch != 2 {
		t.Errorf("epoch %d, %v", got.Epoch, err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	server := &rest.Config{Host: "http://127.0.0.1:1"}
	for _, c := range []kubernetes.Config{
		{Namespace: "a", Name: "b"},
		{REST: server, Name: "b"},
		{REST: server, Namespace: "a"},
		{REST: server, Namespace: "A", Name: "b"},
		{REST: server, Namespace: "a", Name: "b/c"},
		{REST: server, Namespace: "a", Name: strings.Repeat("b", kubernetes.MaxName+1)},
	} {
		if _, err := kubernetes.New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	u := <-storetest.Follow(t, api{host: server.Host}.open(t, "b").Plan()).Updates
	if !errors.Is(u.Err, store.ErrUnavailable) || !strings.Contains(u.Err.Error(), "read the plan") || !strings.Contains(u.Err.Error(), "refused") {
		t.Errorf("no API server: %v", u.Err)
	}
}
