package publish_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/nodegroup"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// fakeMonitor is a Monitor and a RequestCounter with results set by the test.
type fakeMonitor struct {
	mu       sync.Mutex
	bad      string
	requests int
	clusters map[string]bool // that were asked for
}

func (v *fakeMonitor) Regression(group string, since time.Time) (bool, string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.bad != "" && group == "canary" && !since.IsZero(), v.bad
}

func (v *fakeMonitor) ActiveRequests(cluster string, addresses []string) (int, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clusters[cluster+" "+strings.Join(addresses, " ")] = true
	if cluster != resources.ClusterName("m", 0) {
		return 0, true
	}
	return v.requests, true
}

func (v *fakeMonitor) set(bad string, requests int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bad, v.requests = bad, requests
}

// newGroupHarness is newHarness with a canary group.
func newGroupHarness(t *testing.T, v *fakeMonitor, refused func([]publish.Refusal)) *harness {
	t.Helper()
	groups, err := nodegroup.New([]nodegroup.Rule{{Name: "canary", Nodes: []string{"canary*"}}})
	if err != nil {
		t.Fatal(err)
	}
	return startHarness(t, publish.Config{Groups: groups, Watch: 2 * time.Second, Monitor: v, RequestCounter: v, OnRefusal: refused})
}

// nodeReasons returns the epoch and the reason of every node.
func (w *harness) nodeReasons() map[string]string {
	synctest.Wait()
	out := make(map[string]string)
	for _, n := range w.publisher.Status().Nodes {
		out[n.ID] = strings.TrimSpace(string('0'+rune(n.Epoch)) + " " + n.Why)
	}
	return out
}

func (w *harness) requireReasons(want map[string]string) {
	w.t.Helper()
	got := w.nodeReasons()
	for id, why := range want {
		if got[id] != why {
			w.t.Errorf("%s: %q, want %q", id, got[id], why)
		}
	}
}

// TestGroups takes plans through two groups of proxies: one after the other,
// watched, rolled back after a regression and after a NACK, and with draining
// endpoints.
func TestGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeMonitor{clusters: make(map[string]bool)}
		var reported []publish.Refusal
		w := newGroupHarness(t, v, func(list []publish.Refusal) { reported = append(reported, list...) })
		proxyOf := func(id string) *fakeProxy {
			return w.startProxy(&fakeProxy{id: id, maxDelay: time.Millisecond, rand: rand.New(rand.NewPCG(5, 5))})
		}
		canary, edge := proxyOf("canary-1"), proxyOf("edge-1")
		cuts := []policies.Tokens{10}
		w.submit(view(1, cuts, "a b", "c"))
		w.waitForIdle()
		w.requireReasons(map[string]string{"canary-1": "1", "edge-1": "1"})

		w.submit(view(2, cuts, "a", "b c"))
		time.Sleep(time.Second)
		w.requireReasons(map[string]string{
			"canary-1": "2 canary: watched for another 1.0 s", "edge-1": "1 default: waiting for its turn to get plan 2",
		})
		if st := w.publisher.Status(); st.Phase != "watch" || st.Epoch != 1 || len(st.Groups) != 2 || st.Groups[0].Nodes != 1 {
			t.Errorf("status %+v", st)
		}
		w.waitForIdle()
		w.requireReasons(map[string]string{"canary-1": "2", "edge-1": "2"})

		// The monitor reports a regression.
		w.submit(view(3, cuts, "a b", "c"))
		time.Sleep(time.Second)
		v.set("3 % of requests fail", 0)
		time.Sleep(time.Second)
		v.set("", 0)
		w.waitForIdle()
		w.requireReasons(map[string]string{
			"canary-1": "2 blocked at plan 2: group canary: 3 % of requests fail", "edge-1": "2 blocked at plan 2: group canary: 3 % of requests fail",
		})

		// The canary refuses the plan; the other proxy never gets it.
		before := edge.received()
		canary.refuse(func(r *discoveryv3.Resource) bool { return r.Name == resources.RouteName })
		w.submit(view(4, cuts, "a b", "c"))
		synctest.Wait()
		time.Sleep(20 * time.Millisecond)
		canary.refuse(nil)
		w.waitForIdle()
		w.requireReasons(map[string]string{"edge-1": "2 blocked at plan 2: route table cascade refused by canary-1: no cascade"})
		if n := edge.received() - before; n != 0 {
			t.Errorf("other proxy received %d resources", n)
		}
		if len(reported) != 1 || reported[0].Group != "canary" || reported[0].Name != resources.RouteName {
			t.Errorf("reported refusals %+v", reported)
		}

		// A proxy of another control plane refuses a plan that is on trial
		// here.
		five := view(5, cuts, "a b", "c")
		table := tableOf(t, five)
		w.submit(five)
		time.Sleep(time.Second)
		w.publisher.Quarantine([]publish.Refusal{{
			Type: resources.RouteType, Name: resources.RouteName, Node: "far", Text: "no",
			Version: table.Set.Get(resources.RouteType, resources.RouteName).Version,
		}})
		w.waitForIdle()
		w.requireReasons(map[string]string{"canary-1": "2 blocked at plan 2: route table cascade refused by far: no"})
		if len(reported) != 1 || len(w.publisher.Quarantined()) != 2 {
			t.Errorf("reported %d refusals, quarantined %+v", len(reported), w.publisher.Quarantined())
		}

		// A replica leaves the fleet while it has requests.
		v.set("", 2)
		w.submit(view(6, nil, "a c"))
		time.Sleep(4 * time.Second)
		w.requireReasons(map[string]string{"edge-1": "6 default: removed endpoints drain for at most 28.0 s"})
		v.set("", 0)
		w.waitForIdle()
		w.requireReasons(map[string]string{"canary-1": "6", "edge-1": "6"})
		if address := endpoint("m", "b").Address; !v.clusters[resources.ClusterName("m", 1)+" "+address] {
			t.Errorf("requests counted for clusters %v", v.clusters)
		}
	})
}
