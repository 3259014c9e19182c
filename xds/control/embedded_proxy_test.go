package control

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/proxy"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// TestEmbeddedProxyReports checks that the embedded proxy reports its load as Envoy does, requests in
// progress and failures, and what it lacks.
func TestEmbeddedProxyReports(t *testing.T) {
	t.Parallel()
	a, b := startHoldServer(t, "r0"), startHoldServer(t, "r1")
	c := startControl(t, Config{Rules: rulesWithoutReports(), Replicas: []policies.Replica{a.Replica, b.Replica}})
	var short atomic.Bool
	p := testkit.Must(proxy.New(proxy.Config{
		Client: routing.Config{Target: c.Addr().String(), NodeID: "e1"},
		Problems: func() []loadreport.Problem {
			if !short.Load() {
				return nil
			}
			return []loadreport.Problem{{Kind: loadreport.ProblemDescriptors, Text: "few are left"}}
		},
	}))
	testkit.Run(t, p.Run)
	<-p.Ready()
	streams := newClients(t, "http://"+p.Addr().String(), 10)
	testkit.WaitFor(t, "the report of an idle proxy", func() bool { return activeRequests(c, a, b) == 0 })
	streams.hold(7)
	testkit.WaitFor(t, "seven requests in progress", func() bool { return activeRequests(c, a, b) == 7 })
	began := time.Now()
	testkit.WaitFor(t, "failures", func() bool {
		if code := streams.get("/version"); code != http.StatusInternalServerError {
			t.Fatalf("status %d", code)
		}
		bad, _ := c.loads.Regression("", began)
		return bad
	})
	short.Store(true)
	waitFor(t, c, "the shortage", func(s Status) bool { return hasFault(s, "descriptors", "proxy e1") })
	requireNamed(t, c, "descriptors", "proxy e1", true)
	short.Store(false)
	waitFor(t, c, "its end", func(s Status) bool { return !hasFault(s, "descriptors", "proxy e1") })
	close(a.release)
	close(b.release)
	streams.end()
	testkit.WaitFor(t, "the end of all streams", func() bool { return activeRequests(c, a, b) == 0 })
}
