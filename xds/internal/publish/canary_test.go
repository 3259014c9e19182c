package publish_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// routeAudit counts which node is sent which version of the route table.
type routeAudit struct {
	*publish.Ledger
	mu   sync.Mutex
	node map[int64]string
	sent map[string]int // by "node version"
	bad  string         // the version of the last table that Envoy refuses
}

func (a *routeAudit) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	a.mu.Lock()
	if n := req.GetNode().GetId(); n != "" {
		a.node[id] = n
	}
	a.mu.Unlock()
	return a.Ledger.OnStreamDeltaRequest(id, req)
}

func (a *routeAudit) OnStreamDeltaResponse(id int64, req *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	a.mu.Lock()
	for _, r := range resp.GetResources() {
		if r.GetName() == resources.RouteName && resp.GetTypeUrl() == resources.RouteType {
			a.sent[a.node[id]+" "+r.GetVersion()]++
		}
	}
	a.mu.Unlock()
	a.Ledger.OnStreamDeltaResponse(id, req, resp)
}

// countBad returns how often a node was sent the last table that Envoy refuses.
func (a *routeAudit) countBad(node string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent[node+" "+a.bad]
}

// startGroupedControlPlane runs a control plane with a canary group. It renders
// plans with an even epoch with two virtual hosts for every name, which Envoy
// refuses.
func startGroupedControlPlane(t *testing.T) (*controlPlane, *routeAudit) {
	t.Helper()
	groups := testkit.Must(resources.NewGroups([]resources.GroupRule{{Name: "canary", Nodes: []string{"canary*"}}}))
	p := newControlPlane(t, publish.Config{Groups: groups, Watch: 200 * time.Millisecond})
	a := &routeAudit{Ledger: p.ledger, node: make(map[int64]string), sent: make(map[string]int)}
	p.publisher.Misrender(func(v resources.View, s resources.Set) resources.Set {
		if v.Plans[0].Epoch%2 == 1 {
			return s
		}
		rc := new(routev3.RouteConfiguration)
		if err := s.Get(resources.RouteType, resources.RouteName).Decode(rc); err != nil {
			t.Error(err)
		}
		for i := range 2 {
			star := proto.CloneOf(rc.VirtualHosts[0])
			star.Name, star.Domains = fmt.Sprint("star", i), []string{"*"}
			rc.VirtualHosts = append(rc.VirtualHosts, star)
		}
		bad, err := resources.Encode(resources.RouteType, resources.RouteName, rc)
		if err != nil {
			t.Error(err)
		}
		a.mu.Lock()
		a.bad = bad.Version
		a.mu.Unlock()
		all := []*resources.Resource{bad}
		for _, r := range s.All(resources.RouteType) {
			if r.Name != bad.Name {
				all = append(all, r)
			}
		}
		routes, err := resources.NewSet(all...)
		if err != nil {
			t.Error(err)
		}
		return s.WithTypes(routes, resources.RouteType)
	})
	p.serve(t, "", p.ads(a))
	return p, a
}

// routeUpdates returns how many route tables an Envoy has applied and refused.
func routeUpdates(e *envoytest.Process) (taken, refused int64) {
	for name, n := range e.Stats(`rds\.cascade\.update_(success|rejected)`) {
		if strings.HasSuffix(name, "rejected") {
			refused += n
		} else {
			taken += n
		}
	}
	return taken, refused
}

// TestEnvoyRefuses checks that a route table which a real Envoy refuses is
// rolled back, sent to no other node and never again, and that requests succeed
// throughout.
func TestEnvoyRefuses(t *testing.T) {
	backends := startBackends(t, "a", "b")
	p, a := startGroupedControlPlane(t)
	cuts := []policies.Tokens{1000}
	p.publisher.Submit(backendView(backends, 1, cuts, "a", "b"))
	canary, edge := startEnvoy(t, "canary-1", p.address), startEnvoy(t, "edge-1", p.address)
	p.waitForCurrent(t, 1, 2)
	taken, refused := routeUpdates(edge)
	if taken == 0 || refused != 0 {
		t.Fatalf("the other Envoy applied %d tables and refused %d at first", taken, refused)
	}

	stop := startLoad(t, newClient(t, canary), newClient(t, edge))
	begun := time.Now()
	two := backendView(backends, 2, cuts, "a", "b")
	p.publisher.Submit(two)
	testkit.WaitForValue(t, "the rollback", p.publisher.Status, func(st publish.Status) bool {
		back := len(st.Refused) == 1 && st.Phase == "idle"
		for _, n := range st.Nodes {
			back = back && n.Current && n.Epoch == 1
		}
		return back
	})
	t.Logf("refused and rolled back after %v", time.Since(begun).Round(time.Microsecond))
	st := p.publisher.Status()
	r := st.Refused[0]
	if r.Node != "canary-1" || r.Group != "canary" || r.Type != "RouteConfiguration" || r.Name != resources.RouteName || r.Epoch != 2 {
		t.Errorf("refused: %+v", r)
	}
	if want := "Only a single wildcard domain is permitted in route cascade"; r.Text != want {
		t.Errorf("text %q, want %q", r.Text, want)
	}
	for _, n := range st.Nodes {
		if want := "blocked at plan 1: route table cascade refused by canary-1: " + r.Text; n.Reason != want {
			t.Errorf("%s: %q, want %q", n.ID, n.Reason, want)
		}
	}

	// Health changes are still applied on both; a later node is not sent the
	// refused table.
	drained := two // a copy: the publisher still reads the submitted view
	drained.Endpoints = slices.Clone(two.Endpoints)
	drained.Endpoints[1].Health = resources.Draining
	p.publisher.Submit(drained)
	p.publisher.Submit(two)
	late := startEnvoy(t, "canary-2", p.address)
	p.waitForCurrent(t, 1, 3)
	for node, want := range map[string]int{"canary-1": 1, "canary-2": 0, "edge-1": 0} {
		if n := a.countBad(node); n != want {
			t.Errorf("%s was sent the refused table %d times, want %d", node, n, want)
		}
	}
	if _, n := routeUpdates(canary); n != 1 {
		t.Errorf("canary refused %d tables", n)
	}
	if now, n := routeUpdates(edge); now != taken || n != 0 {
		t.Errorf("the other Envoy applied %d more tables and refused %d", now-taken, n)
	}
	if _, n := routeUpdates(late); n != 0 {
		t.Errorf("later node refused %d tables", n)
	}

	// A table with other bytes is tried, on the canaries first.
	p.publisher.Submit(backendView(backends, 3, cuts, "a", "b"))
	p.waitForCurrent(t, 3, 3)
	if st := p.publisher.Status(); st.Err != nil {
		t.Error(st.Err)
	}
	t.Logf("%d requests", stop())
}
