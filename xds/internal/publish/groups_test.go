package publish_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/nodegroup"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// verdicts is a Judge and an Activity that say what the test wants.
type verdicts struct {
	mu       sync.Mutex
	bad      string
	requests int
	asked    map[string]bool // clusters
}

func (v *verdicts) Regression(group string, since time.Time) (bool, string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.bad != "" && group == "canary" && !since.IsZero(), v.bad
}

func (v *verdicts) ActiveRequests(cluster string, addresses []string) (int, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked[cluster+" "+strings.Join(addresses, " ")] = true
	if cluster != resources.ClusterName("m", 0) {
		return 0, true
	}
	return v.requests, true
}

func (v *verdicts) say(bad string, requests int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bad, v.requests = bad, requests
}

// newGroups is newWorld with a group of canaries.
func newGroups(t *testing.T, v *verdicts, refused func([]publish.Refusal)) *world {
	t.Helper()
	groups, err := nodegroup.New([]nodegroup.Rule{{Name: "canary", Nodes: []string{"canary*"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{t: t, ledger: publish.NewLedger(nil), ctx: ctx,
		history: &history{plans: make(map[string]policies.Plan), at: make(map[policies.ReplicaID]string)}}
	w.target = &counting{Cache: cache.New(cache.Config{Group: func(n *corev3.Node) string { return groups.GroupOf(n.GetId(), n.GetCluster()) }})}
	w.publisher, err = publish.New(publish.Config{
		Cache: w.target, Ledger: w.ledger, Groups: groups, Watch: 2 * time.Second, Monitor: v, RequestCounter: v, OnRefusal: refused,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.server = serverv3.NewServer(ctx, w.target, w.ledger)
	w.wg.Go(func() {
		if err := w.publisher.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); w.wg.Wait() })
	return w
}

// whys tells the epoch and the reason of every node.
func (w *world) whys() map[string]string {
	synctest.Wait()
	out := make(map[string]string)
	for _, n := range w.publisher.Status().Nodes {
		out[n.ID] = strings.TrimSpace(string('0'+rune(n.Epoch)) + " " + n.Why)
	}
	return out
}

func (w *world) expect(want map[string]string) {
	w.t.Helper()
	got := w.whys()
	for id, why := range want {
		if got[id] != why {
			w.t.Errorf("%s: %q, want %q", id, got[id], why)
		}
	}
}

// TestGroups takes plans through two groups of proxies: in turn, watched, taken
// back by the judge and by a refusal, and with draining endpoints.
func TestGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &verdicts{asked: make(map[string]bool)}
		var told []publish.Refusal
		w := newGroups(t, v, func(list []publish.Refusal) { told = append(told, list...) })
		proxyOf := func(id string) *proxy {
			return w.join(&proxy{id: id, slow: time.Millisecond, rand: rand.New(rand.NewPCG(5, 5))})
		}
		canary, edge := proxyOf("canary-1"), proxyOf("edge-1")
		cuts := []policies.Tokens{10}
		w.submit(view(1, cuts, "a b", "c"))
		w.rest()
		w.expect(map[string]string{"canary-1": "1", "edge-1": "1"})

		w.submit(view(2, cuts, "a", "b c"))
		time.Sleep(time.Second)
		w.expect(map[string]string{
			"canary-1": "2 canary: watched for another 1.0 s", "edge-1": "1 default: waiting for its turn to get plan 2",
		})
		if st := w.publisher.Status(); st.Phase != "watch" || st.Epoch != 1 || len(st.Groups) != 2 || st.Groups[0].Nodes != 1 {
			t.Errorf("status %+v", st)
		}
		w.rest()
		w.expect(map[string]string{"canary-1": "2", "edge-1": "2"})

		// It got worse.
		w.submit(view(3, cuts, "a b", "c"))
		time.Sleep(time.Second)
		v.say("3 % of requests fail", 0)
		time.Sleep(time.Second)
		v.say("", 0)
		w.rest()
		w.expect(map[string]string{
			"canary-1": "2 blocked at plan 2: group canary: 3 % of requests fail", "edge-1": "2 blocked at plan 2: group canary: 3 % of requests fail",
		})

		// The canary refuses it; the other one never sees it.
		before := edge.received()
		canary.refuse(func(r *discoveryv3.Resource) bool { return r.Name == resources.RouteName })
		w.submit(view(4, cuts, "a b", "c"))
		synctest.Wait()
		time.Sleep(20 * time.Millisecond)
		canary.refuse(nil)
		w.rest()
		w.expect(map[string]string{"edge-1": "2 blocked at plan 2: route table cascade refused by canary-1: no cascade"})
		if n := edge.received() - before; n != 0 {
			t.Errorf("the other proxy received %d resources", n)
		}
		if len(told) != 1 || told[0].Group != "canary" || told[0].Name != resources.RouteName {
			t.Errorf("others were told %+v", told)
		}

		// Another server's proxy refuses a plan that is on trial here.
		five := view(5, cuts, "a b", "c")
		table := tableOf(t, five)
		w.submit(five)
		time.Sleep(time.Second)
		w.publisher.Quarantine([]publish.Refusal{{
			Type: resources.RouteType, Name: resources.RouteName, Node: "far", Text: "no",
			Version: table.Set.Get(resources.RouteType, resources.RouteName).Version,
		}})
		w.rest()
		w.expect(map[string]string{"canary-1": "2 blocked at plan 2: route table cascade refused by far: no"})
		if len(told) != 1 || len(w.publisher.Quarantined()) != 2 {
			t.Errorf("told %d, refused %+v", len(told), w.publisher.Quarantined())
		}

		// A replica leaves the fleet while it has requests.
		v.say("", 2)
		w.submit(view(6, nil, "a c"))
		time.Sleep(4 * time.Second)
		w.expect(map[string]string{"edge-1": "6 default: removed endpoints drain for at most 28.0 s"})
		v.say("", 0)
		w.rest()
		w.expect(map[string]string{"canary-1": "6", "edge-1": "6"})
		if address := endpoint("m", "b").Address; !v.asked[resources.ClusterName("m", 1)+" "+address] {
			t.Errorf("asked for %v", v.asked)
		}
	})
}
