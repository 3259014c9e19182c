//go:build unix

package proxy

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestLocalFaultBlamesNoReplica: a proxy without descriptors for new connections refuses
// requests, and passes no replica over for it.
func TestLocalFaultBlamesNoReplica(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.see("POST", "/", "", bytes.NewReader(prompt("m", 100))) // opens the client's connection
	f.proxy.replicas.keep(nil)
	var was syscall.Rlimit
	testkit.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	none := was
	none.Cur = 3
	testkit.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	restore := func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) }
	defer restore()
	for range 20 {
		// The estimator reads a body without a length first, so the client keeps its connection.
		resp, body := f.send("POST", "/", "", chunked{bytes.NewReader(prompt("m", 100))})
		if resp.StatusCode != 503 || resp.Header.Get("X-Envoy-Overloaded") == "" {
			t.Fatalf("%d %v: %s", resp.StatusCode, resp.Header, body)
		}
	}
	restore()
	if n := testutil.ToFloat64(f.proxy.metrics.ejections.WithLabelValues("cascade/m/s0/rr")); n != 0 {
		t.Errorf("%v replicas were passed over", n)
	}
	if resp, body := f.send("POST", "/", "", bytes.NewReader(prompt("m", 100))); resp.StatusCode != 200 {
		t.Errorf("afterwards: %d %s", resp.StatusCode, body)
	}
}

// TestAdmit: a proxy without resources refuses requests and asks for the connection.
func TestAdmit(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.proxy.cfg.Admit = func() error { return syscall.EMFILE } // before the first request
	if resp, body := f.send("POST", "/", "", bytes.NewReader(prompt("m",
		100))); resp.StatusCode != 503 || !resp.Close || resp.Header.Get("X-Envoy-Overloaded") == "" {
		t.Errorf("%d %v: %s", resp.StatusCode, resp.Header, body)
	}
	if hits := f.hits(); hits != 0 {
		t.Errorf("%d requests reached a front", hits)
	}
}
