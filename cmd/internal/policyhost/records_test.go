package policyhost_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/xds/control"
)

// records fetches the recorded calls of the slot place, once there are some.
func (s *site) records() []policydev.Frame {
	s.t.Helper()
	var frames []policydev.Frame
	s.await("recorded", func(control.PolicySlot) bool {
		resp, err := s.client.Get(s.AdminURL() + "/policies/records?slot=place")
		testkit.NoError(s.t, err)
		defer resp.Body.Close()
		if frames, err = calllog.Read(resp.Body); err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get(policyhost.HostHeader) != "local" {
			s.t.Fatalf("%s: %v, %v", resp.Status, err, resp.Header)
		}
		return len(frames) >= 4
	})
	return frames
}

// TestRecords checks that the recorded calls of a fleet can be fetched, and that a replay
// shows where another policy decides differently: here one that forwards every request to
// its first peer, and one that fails.
func TestRecords(t *testing.T) {
	s := newSite(t)
	stop := s.traffic()
	for _, f := range s.records() {
		if f.Answer == nil || f.Answer.Kind != abi.Place || f.Answer.Module != [32]byte{} {
			t.Fatalf("%+v", f)
		}
	}
	code := [][]byte{hosttest.Result(uint32(abi.None), 0)}
	module := hosttest.Policy(hosttest.Function(abi.Place.Export(), nil, code...)).Encode()
	g := s.push("stable", code...)
	s.await("active", func(p control.PolicySlot) bool { return decides(p, g) })
	frames := s.records()
	stop()
	was := policydev.Recorded(frames)
	for _, r := range was {
		if r.Module != lifecycle.Sum(module) || r.Fuel == 0 || r.Cause != 0 {
			t.Errorf("%+v", r)
		}
	}
	first := hosttest.Policy(hosttest.Function(abi.Place.Export(), nil, hosttest.Result(uint32(abi.OK), 0))).Encode()
	for _, c := range []struct {
		module []byte
		same   bool
	}{{module, true}, {first, false}} {
		path := filepath.Join(t.TempDir(), "m.wasm")
		testkit.NoError(t, os.WriteFile(path, c.module, 0o600))
		subject, err := policydev.Open(t.Context(), path, nil, nil)
		testkit.NoError(t, err)
		played, err := policydev.Replay(t.Context(), subject, frames)
		testkit.NoError(t, err)
		if got := policydev.Compare(was, played.Records, 1); (got.Differ == 0) != c.same || got.Same+got.Differ != len(frames) {
			t.Errorf("%+v", got)
		}
		if err := subject.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRecordsRefused covers slots that the host does not run, bad queries, and clients
// that are not local.
func TestRecordsRefused(t *testing.T) {
	for _, c := range []struct {
		query, from string
		want        int
	}{
		{"slot=place", "127.0.0.1:1", http.StatusNotFound}, {"slot=place", "[::1]:1", http.StatusNotFound},
		{"slot=plaice", "127.0.0.1:1", http.StatusBadRequest}, {"", "127.0.0.1:1", http.StatusBadRequest},
		{"slot=place", "192.0.2.1:1", http.StatusForbidden}, {"slot=place", "", http.StatusForbidden},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/policies/records?"+c.query, nil)
		r.RemoteAddr = c.from
		policyhost.Records().ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%q from %q: %d %s", c.query, c.from, w.Code, w.Body)
		}
	}
}
