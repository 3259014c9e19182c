package publish

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// wire is a ledger with the streams of its nodes.
type wire struct {
	*Ledger
	t     *testing.T
	nonce int
}

// open opens a stream of a node that subscribes to all resources of some types.
func (w *wire) open(id int64, node, cluster string, types ...string) {
	w.t.Helper()
	testkit.NoError(w.t, w.OnDeltaStreamOpen(w.t.Context(), id, ""))
	for _, typ := range types {
		testkit.NoError(w.t, w.OnStreamDeltaRequest(id, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node, Cluster: cluster}, TypeUrl: typ}))
	}
}

// send sends a response, and returns its nonce.
func (w *wire) send(id int64, typ, text string) string {
	w.nonce++
	w.OnStreamDeltaResponse(id, nil, responseOf(typ, w.nonce, text))
	return fmt.Sprint(w.nonce)
}

// responseOf returns a response with resources "name@version"; behind "-" they are removed.
func responseOf(typ string, nonce int, text string) *discoveryv3.DeltaDiscoveryResponse {
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ, Nonce: fmt.Sprint(nonce)}
	for _, f := range strings.Fields(text) {
		if name, minus := strings.CutPrefix(f, "-"); minus {
			r.RemovedResources = append(r.RemovedResources, name)
			continue
		}
		name, version, _ := strings.Cut(f, "@")
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: name, Version: version})
	}
	return r
}

// reply answers a response; a refusal makes it a NACK, with reasons by name in its details.
func (w *wire) reply(id int64, typ, nonce, refusal string, byName ...string) {
	w.t.Helper()
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: nonce}
	if refusal != "" {
		r.ErrorDetail = &rpcstatus.Status{Code: 13, Message: refusal}
	}
	list := new(errdetails.BadRequest)
	for i := 0; i < len(byName); i += 2 {
		list.FieldViolations = append(list.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: byName[i], Description: byName[i+1]})
	}
	if len(byName) > 0 {
		r.ErrorDetail.Details = []*anypb.Any{testkit.Must(anypb.New(list))}
	}
	testkit.NoError(w.t, w.OnStreamDeltaRequest(id, r))
}

// ask returns the observation of a group that is sent clusters; nodes are unanswered.
func (w *wire) ask(group, clusters string, types []string, unanswered ...string) observation {
	return w.observe(query{group: group, set: set(clusters), types: types}, func(_ []string, ids map[string]bool) {
		for _, id := range unanswered {
			ids[id] = true
		}
	})
}

var clusterTypes = []string{resources.ClusterType}

// TestObservationCounts checks which nodes an observation counts: those of the group that
// are connected, count and are no observers.
func TestObservationCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{Ledger: NewLedger(nil), t: t}
		w.open(1, "early", "edge", resources.ClusterType) // before the groups are known
		groups := testkit.Must(resources.NewGroups([]resources.GroupRule{{Name: "g", Clusters: []string{"edge"}}}))
		p := testkit.Must(New(Config{Cache: noCache{}, Ledger: w.Ledger, Groups: groups, Counts: func(id string) bool { return id != "foreign" }}))
		if got := p.Status(); len(got.Groups) != 2 || got.Nodes[0].Group != "g" {
			t.Errorf("before the first plan: groups %+v, nodes %+v", got.Groups, got.Nodes)
		}
		w.open(2, "late", "edge", resources.ClusterType)
		w.open(3, "foreign", "edge", resources.ClusterType)
		w.open(4, "elsewhere", "other", resources.ClusterType)
		w.open(5, "observer", resources.ObserverCluster, resources.ClusterType)
		w.open(6, "gone", "edge", resources.ClusterType)
		w.open(7, "routes", "edge", resources.RouteType)
		w.OnDeltaStreamClosed(6, nil)
		w.open(8, "nothing", "edge") // it asks for what does not exist
		testkit.NoError(t, w.OnStreamDeltaRequest(8, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "nothing", Cluster: "edge"},
			TypeUrl: resources.ClusterType, ResourceNamesSubscribe: []string{"none"}}))
		w.reply(1, resources.ClusterType, w.send(1, resources.ClusterType, "a@1"), "")
		w.reply(7, resources.RouteType, w.send(7, resources.RouteType, "r@1"), "")
		f := w.ask("g", "a@1", clusterTypes, "foreign")
		if f.nodes != 4 || !f.othersLate || !f.late["late"] || !f.late["gone"] || len(f.late) != 2 {
			t.Errorf("%+v, want 4 nodes of which early has a, and late and gone do not", f)
		}
		fenced := query{group: "g", set: set("a@1"), fenced: map[string]string{"early": "late", "late": "late"}}
		for unanswered, want := range map[string]int{"early": 2, "other": 1} {
			f := w.observe(fenced, func(_ []string, ids map[string]bool) { ids[unanswered] = true })
			if len(f.behind) != want || !f.behind["late"] || f.behind["routes"] {
				t.Errorf("%v are behind, %s has not answered", f.behind, unanswered)
			}
		}
		time.Sleep(reconnectTime - 1)
		if f := w.ask("g", "a@1", clusterTypes); !f.late["gone"] {
			t.Error("a node that lost its stream is not waited for")
		}
		time.Sleep(time.Nanosecond)
		if f := w.ask("g", "a@1", clusterTypes); f.late["gone"] || f.nodes != 4 || f.othersLate {
			t.Errorf("%+v: gone is waited for longer than %v", f, reconnectTime)
		}
		if f := w.ask("g", "a@2", nil, "early", "late"); len(f.late) > 0 {
			t.Errorf("a group that waits for nothing waits for %v", f.late)
		}
	})
}

// TestNACKs checks what the rollout learns of NACKs, until the node lacks nothing any more, and that the
// first one of a row is logged.
func TestNACKs(t *testing.T) {
	var log testkit.Log
	w := &wire{Ledger: NewLedger(log.Logger()), t: t}
	w.counts = func(id string) bool { return id != "foreign" }
	w.open(1, "n", "", resources.ClusterType)
	w.open(2, "observer", resources.ObserverCluster, resources.ClusterType)
	w.open(3, "foreign", "", resources.ClusterType)
	refuse := func(id int64, text, reason string) {
		w.reply(id, resources.ClusterType, w.send(id, resources.ClusterType, text), reason)
	}
	refused := func(clusters, want string) {
		t.Helper()
		var got []string
		for _, f := range w.ask("", clusters, nil).refusals {
			got = append(got, f.String())
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("of %s: %q, want %q", clusters, text, want)
		}
	}
	refuse(2, "a@1", "an observer's")
	refuse(3, "a@1", "not ours")
	refused("a@1", "")
	refuse(1, "a@1 b@2", "bad")
	refused("a@1 b@2", "cluster a and 1 more refused by n: bad")
	refuse(1, "c@1", "worse")
	refused("a@1 b@2 c@1", "cluster c and 2 more refused by n: worse")
	const text = "node refused a response"
	if n := log.Count(text + "\" node=n"); n != 1 {
		t.Errorf("%d logs of two NACKs in a row:\n%s", n, &log)
	}
	w.reply(1, resources.ClusterType, w.send(1, resources.ClusterType, "c@1"), "")
	refused("a@1 b@2 c@1", "cluster c and 2 more refused by n: worse")
	w.reply(1, resources.ClusterType, w.send(1, resources.ClusterType, "a@1 b@2"), "")
	refused("a@1 b@2 c@1", "")
	refuse(1, "a@3", "again")
	refused("a@4", "") // the version is not sent any more
	refused("a@3", "")
	if n := log.Count(text + "\" node=n"); n != 2 {
		t.Errorf("%d logs: a NACK after an ACK begins another row", n)
	}
	w.open(5, "n", "", resources.ExtensionType)
	w.reply(5, resources.ExtensionType, w.send(5, resources.ExtensionType, "estimator@1"), "it has a default")
	if f := w.nodes["n"].refusals; len(f) > 0 {
		t.Errorf("%+v: the refusal of an extension config stops a plan", f)
	}
}

// TestRefuserThatLeaves checks that a NACK counts while the node may come back, and no longer, and that the
// NACK of a node which has left counts once.
func TestRefuserThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{Ledger: NewLedger(nil), t: t}
		w.open(1, "n", "", resources.ClusterType)
		w.reply(1, resources.ClusterType, w.send(1, resources.ClusterType, "a@1"), "no")
		w.OnDeltaStreamClosed(1, nil)
		time.Sleep(reconnectTime - 1)
		if f := w.ask("", "a@1", nil); len(f.refusals) != 1 || f.nodes != 1 {
			t.Errorf("%+v, want the NACK of a node that may come back", f)
		}
		time.Sleep(time.Nanosecond)
		if f := w.ask("", "a@1", nil); len(f.refusals) != 0 || f.nodes != 0 {
			t.Errorf("%+v counts a node that has left", f)
		}
		request := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "sotw"}, TypeUrl: resources.ClusterType}
		testkit.NoError(t, w.OnStreamOpen(t.Context(), 2, ""))
		testkit.NoError(t, w.OnStreamRequest(2, request))
		sent := &discoveryv3.DiscoveryResponse{TypeUrl: resources.ClusterType, Nonce: "1", Resources: []*anypb.Any{{Value: body("a")}}}
		w.OnStreamResponse(t.Context(), 2, request, sent)
		request.ResponseNonce, request.ErrorDetail = "1", &rpcstatus.Status{Message: "no"}
		testkit.NoError(t, w.OnStreamRequest(2, request))
		w.OnStreamClosed(2, nil)
		for _, want := range []int{1, 0} {
			if f := w.ask("", "a", nil); len(f.refusals) != want || f.nodes != want {
				t.Errorf("%+v, want %d refusals", f, want)
			}
		}
	})
}

// TestReconnectedNodeIsKept checks that a node which has come back is not forgotten among
// those without a stream, and that a second stream counts neither as a new connect nor, at its end, as a disconnect.
func TestReconnectedNodeIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{Ledger: NewLedger(nil), t: t}
		w.open(1, "back", "", resources.ClusterType)
		w.OnDeltaStreamClosed(1, nil)
		w.open(2, "back", "", resources.ClusterType)
		since := w.nodes["back"].since
		time.Sleep(time.Minute)
		w.open(3, "back", "", resources.RouteType)
		w.OnDeltaStreamClosed(3, nil)
		if n := w.nodes["back"]; n.since != since {
			t.Errorf("connected since %v, then %v", since, n.since)
		}
		for i := range int64(maxDisconnected + 2) {
			w.open(10+i, fmt.Sprint("n", i), "", resources.ClusterType)
			w.OnDeltaStreamClosed(10+i, nil)
		}
		if w.nodes["back"] == nil || w.nodes["n1"] != nil || w.nodes["n2"] == nil {
			t.Errorf("%d nodes are kept, back is %+v", len(w.nodes), w.nodes["back"])
		}
	})
}

// TestSlotReplies checks that replies about policy slots of known kinds are recorded by slot,
// also those of a proxy, until the slot is removed.
func TestSlotReplies(t *testing.T) {
	w := &wire{Ledger: NewLedger(nil), t: t}
	w.open(1, "n", "", resources.ExtensionType)
	place, bid := policyslots.ResourceName("place"), policyslots.ResourceName("bid-select")
	for _, step := range []struct {
		sent, text   string
		byName       []string // names and reasons in a NACK
		place, other string
	}{
		{place + "@1 " + bid + "@1 " + policyslots.ResourceName("juggle") + "@1 wasm-filter@1", "", nil, "1", "1"},
		{place + "@2 " + bid + "@2", bid + ": " + place + ": the text counts for nothing", []string{bid, "unknown signer; unknown key", place, "expired"}, "2 expired", "2 unknown signer; unknown key"},
		{place + "@3 " + bid + "@3", "one is bad", []string{bid, "bad"}, "3", "3 bad"},
		{bid + "@4", "something else", nil, "3", "4 something else"},
		{"-" + place + " -wasm-filter", "", nil, "", "4 something else"},
	} {
		w.reply(1, resources.ExtensionType, w.send(1, resources.ExtensionType, step.sent), step.text, step.byName...)
		slots := w.nodes["n"].slots
		said := func(k lifecycle.Kind) string { return strings.TrimSpace(slots[k].Version + " " + slots[k].Refused) }
		if said("place") != step.place || said("bid-select") != step.other || len(slots) > 2 {
			t.Errorf("after %q: %+v", step.sent, slots)
		}
	}
}

// TestNodeStatus checks what the status says of one node.
func TestNodeStatus(t *testing.T) {
	w := &wire{Ledger: NewLedger(nil), t: t}
	w.open(1, "n", "", resources.RouteType, resources.ClusterType)
	w.open(2, "n", "", resources.ExtensionType)
	epochs := map[string]policies.Epoch{"2": 2, "1": 3, "4": 4}
	w.reply(1, resources.RouteType, w.send(1, resources.RouteType, "r@1"), "")
	w.reply(1, resources.ClusterType, w.send(1, resources.ClusterType, "a@1 b@1"), "")
	w.send(1, resources.ClusterType, "a@2")
	w.send(1, resources.ClusterType, "b@2")
	n := w.nodes["n"]
	got := n.status(groupView{}, epochs)
	if got.Epoch != 3 || got.State != "current" || got.Types["Cluster"] != (NodeType{Acked: 2, Pending: 2}) {
		t.Errorf("%+v, want the plan of its routes, and two responses without a reply", got)
	}
	if got := n.status(groupView{}, nil); got.State != "following" || !strings.Contains(got.Reason, "published no plan yet") {
		t.Errorf("before the first plan of a control plane that was restarted: %+v", got)
	}
	w.reply(1, resources.ClusterType, fmt.Sprint(w.nonce), "no memory")
	fenced := groupView{Group: Group{fenced: map[string]string{"n": "late"}}}
	if got := n.status(fenced, nil); got.Reason != "fenced: late: no memory" || !got.Fenced || got.NACKs != 1 || got.State != "late" {
		t.Errorf("a fenced node: %+v", got)
	}
	w.OnDeltaStreamClosed(1, nil)
	if got := n.status(fenced, nil); !got.Connected {
		t.Error("disconnected although one of two streams is open")
	}
	w.OnDeltaStreamClosed(2, nil)
	if got := n.status(fenced, nil); got.Connected || got.State != "gone" {
		t.Errorf("not disconnected: %+v", got)
	}
}

// TestReasons checks what the status says that a group waits for.
func TestReasons(t *testing.T) {
	now := time.Now()
	for want, c := range map[string]struct {
		group Group
		whole Status
	}{
		"canary: watched for another 1.5 s":                                 {Group{phase: watch, until: now.Add(1500 * time.Millisecond)}, Status{}},
		"canary: waiting until all groups have the plan":                    {Group{phase: watch, until: now}, Status{}},
		"canary: removed endpoints drain for at most 28.0 s":                {Group{phase: retirement, until: now.Add(28 * time.Second)}, Status{}},
		"canary: waiting for acknowledgements of the next plan's endpoints": {Group{phase: add}, Status{rolling: 2}},
		"canary: waiting for acknowledgements of the routes":                {Group{phase: flip}, Status{rolling: 2}},
		"blocked at plan 1: refused":                                        {Group{Epoch: 1}, Status{blocked: "refused", target: 2}},
		"canary: waiting for its turn to get plan 2":                        {Group{Epoch: 1}, Status{rolling: 2}},
		"": {Group{Epoch: 2}, Status{rolling: 2, target: 2, blocked: "refused"}},
	} {
		if c.group.Name = "canary"; c.group.reason(c.whole, now) != want {
			t.Errorf("%q, want %q", c.group.reason(c.whole, now), want)
		}
	}
}

// TestConfigIsChecked checks the limits of a publisher's configuration and its defaults.
func TestConfigIsChecked(t *testing.T) {
	base := Config{Cache: noCache{}, Ledger: NewLedger(nil)}
	for name, edit := range map[string]func(*Config){
		"ack timeout":   func(c *Config) { c.AckTimeout = -1 },
		"watch":         func(c *Config) { c.Watch = -1 },
		"drain timeout": func(c *Config) { c.DrainTimeout = -1 },
		"no cache":      func(c *Config) { c.Cache = nil },
		"no ledger":     func(c *Config) { c.Ledger = nil },
	} {
		c := base
		edit(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	c := base
	c.DrainTimeout = time.Minute
	if c = testkit.Must(c.validate()); c.DrainTimeout != 0 || c.AckTimeout != defaultAckTimeout {
		t.Errorf("without a counter removed endpoints wait %v", c.DrainTimeout)
	}
	c.RequestCounter = counter{}
	if c = testkit.Must(c.validate()); c.DrainTimeout != defaultDrainTimeout {
		t.Errorf("with a counter they wait %v", c.DrainTimeout)
	}
}

// noCache is a Cache without nodes.
type noCache struct{}

func (noCache) Set(string, resources.Set)            {}
func (noCache) Unanswered([]string, map[string]bool) {}
func (noCache) Changed() <-chan struct{}             { return nil }

// counter counts requests by cluster.
type counter map[string]int

func (c counter) ActiveRequests(cluster string, addresses []string) (int, bool) {
	n, ok := c[cluster]
	return n * len(addresses), ok
}

// TestCountRequests checks that requests on removed endpoints are summed over all clusters
// that can reach them, and unknown where no cluster counts.
func TestCountRequests(t *testing.T) {
	removed := []resources.Endpoint{{Replica: policies.Replica{Model: "m", Address: "a"}}, {Replica: policies.Replica{Model: "m", Address: "b"}}, {Replica: policies.Replica{Model: "n", Address: "c"}}}
	p := testkit.Must(New(Config{Cache: noCache{}, Ledger: NewLedger(nil), RequestCounter: counter{
		resources.ClusterName("m", 0): 3, resources.ClusterName("m", 2): 5, resources.ClusterName("n", 1): 7,
	}}))
	if n, known := p.cfg.countRequests(removed); n != 2*3+2*5+7 || !known {
		t.Errorf("%d requests, known %v", n, known)
	}
	if n, known := p.cfg.countRequests(nil); n != 0 || known {
		t.Errorf("of no endpoints: %d, known %v", n, known)
	}
	p.cfg.RequestCounter = counter{}
	if n, known := p.cfg.countRequests(removed); n != 0 || known {
		t.Errorf("without reports: %d, known %v", n, known)
	}
}

// TestLedgerWakesPublisher checks that what the ledger alone has recorded reaches the status at once, and that a closed
// stream is forgotten.
func TestLedgerWakesPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{Ledger: NewLedger(nil), t: t}
		p := testkit.Must(New(Config{Cache: noCache{}, Ledger: w.Ledger}))
		defer testkit.Run(t, p.Run)()
		w.open(1, "n", "", resources.ClusterType)
		synctest.Wait()
		if n := p.Status().Groups[0].Nodes; n != 1 {
			t.Errorf("%d nodes, want 1", n)
		}
		w.OnDeltaStreamClosed(1, nil)
		synctest.Wait()
		if n := p.Status().Nodes[0]; n.Connected {
			t.Errorf("%+v, want a node without a stream", n)
		}
		testkit.WantError(t, w.OnStreamDeltaRequest(1, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.ClusterType}), "not opened")
	})
}
