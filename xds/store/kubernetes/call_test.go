package kubernetes_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
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
	s := store.New(simulated(server).open(t, newName()))
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
	if u := storetest.Read(t, s); u.Err != nil || u.Version != v || u.Object.Epoch != 3 {
		t.Errorf("stored is epoch %d, version %q, %v, want 3, %q", u.Object.Epoch, u.Version, u.Err, v)
	}
	if stored := server.Paths("-parts-"); len(stored) != 3 {
		t.Errorf("stored are %q", stored)
	}
}

// TestRefused checks what the store says when the API server refuses requests or fails.
func TestRefused(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	c := simulated(server).open(t, newName())
	s := store.New(c)
	v := testkit.Must(s.CompareAndSwap(t.Context(), "", storetest.Object(1)))
	for code, want := range map[int]string{
		http.StatusForbidden:           "control-role.yaml",
		http.StatusUnauthorized:        "check the token",
		http.StatusServiceUnavailable:  "check that the API server runs",
		http.StatusInternalServerError: "check that the API server runs",
	} {
		server.Before(func(*http.Request) int { return code })
		read := storetest.Read(t, s).Err
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
	_, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
	testkit.NoError(t, err)
	server.Before(nil)
	if u := storetest.Read(t, s); u.Err != nil || u.Object.Epoch != 2 {
		t.Errorf("epoch %d, %v", u.Object.Epoch, u.Err)
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
	u := storetest.Read(t, store.New(api{host: server.Host}.open(t, "b")))
	if !errors.Is(u.Err, store.ErrUnavailable) || !strings.Contains(u.Err.Error(), "read the plan") || !strings.Contains(u.Err.Error(), "refused") {
		t.Errorf("no API server: %v", u.Err)
	}
}
