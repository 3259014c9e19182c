package publish

import (
	"context"
	"fmt"
	"slices"
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
	"github.com/cascadeinfer/cascade/xds/internal/planrollout"
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

// send sends a response with resources "name@version"; behind "-" they are removed.
func (w *wire) send(id int64, typ, text string) (nonce string) {
	w.nonce++
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ, Nonce: fmt.Sprint(w.nonce)}
	for _, f := range strings.Fields(text) {
		if name, minus := strings.CutPrefix(f, "-"); minus {
			r.RemovedResources = append(r.RemovedResources, name)
			continue
		}
		name, version, _ := strings.Cut(f, "@")
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: name, Version: version})
	}
	w.OnStreamDeltaResponse(id, nil, r)
	return r.Nonce
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

// ask returns the observation of a group with clusters in force; names are unanswered.
func (w *wire) ask(group, clusters string, types []string, unanswered ...string) planrollout.Observation {
	return w.observe([]planrollout.Query{{Group: group, Set: set(clusters), Types: types}}, func([]string) map[string]bool {
		ids := make(map[string]bool)
		for _, id := range unanswered {
			ids[id] = true
		}
		return ids
	})[group]
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
		if f.Nodes != 4 || !f.OthersLate || !f.Late["late"] || !f.Late["gone"] || len(f.Late) != 2 {
			t.Errorf("%+v, want 4 nodes of which early has a, and late and gone do not", f)
		}
		time.Sleep(reconnectTime - 1)
		if f := w.ask("g", "a@1", clusterTypes); !f.Late["gone"] {
			t.Error("a node that lost its stream is not waited for")
		}
		time.Sleep(time.Nanosecond)
		if f := w.ask("g", "a@1", clusterTypes); f.Late["gone"] || f.Nodes != 4 || f.OthersLate {
			t.Errorf("%+v: gone is waited for longer than %v", f, reconnectTime)
		}
	})
}

// TestObservationAsksOnce checks that the cache is asked once for all groups that wait for
// the same types, and not for a group that waits for none.
func TestObservationAsksOnce(t *testing.T) {
	var asked []string
	ask := func(types []string) map[string]bool {
		asked = append(asked, strings.Join(types, " "))
		return map[string]bool{}
	}
	routes := []string{resources.RouteType}
	NewLedger(nil).observe([]planrollout.Query{{Group: "a", Types: clusterTypes}, {Group: "b", Types: clusterTypes}, {Group: "c"}, {Group: "d", Types: routes}}, ask)
	if !slices.Equal(asked, []string{resources.ClusterType, resources.RouteType}) {
		t.Errorf("asked for %q", asked)
	}
}

// TestNACKs checks what the rollout receives of NACKs, and that the first one of a row is
// logged.
func TestNACKs(t *testing.T) {
	var log testkit.Log
	w := &wire{Ledger: NewLedger(log.Logger()), t: t}
	w.open(1, "n", "", resources.ClusterType)
	w.open(2, "other", "", resources.ClusterType)
	w.open(3, "gone", "", resources.ClusterType)
	w.open(4, "observer", resources.ObserverCluster, resources.ClusterType)
	w.OnDeltaStreamClosed(3, nil)
	refuse := func(id int64, text, reason string) {
		w.reply(id, resources.ClusterType, w.send(id, resources.ClusterType, text), reason)
	}
	refuse(1, "a@1 b@2", "cluster b: bad")
	refuse(4, "a@1", "an observer's")
	nacks := w.takeNACKs()
	if len(nacks) != 1 || nacks[0].Nodes != 2 || nacks[0].Text != "cluster b: bad" || nacks[0].Resources[1] != (planrollout.Version{Name: "b", Version: "2"}) {
		t.Errorf("%+v, want one of n among two connected nodes", nacks)
	}
	const text = "node refused a response"
	refuse(1, "a@1 b@2", "cluster b: bad")
	if n := log.Count(text); n != 2 {
		t.Errorf("%d logs of three NACKs, two of them in a row:\n%s", n, &log)
	}
	w.reply(1, resources.ClusterType, w.send(1, resources.ClusterType, "a@1 b@2"), "")
	refuse(1, "a@3", "again")
	if n := log.Count(text); n != 3 {
		t.Errorf("%d logs: a NACK after an ACK begins another row", n)
	}
	for range maxNACKs + 5 {
		refuse(2, "c@1", "no")
	}
	if nacks := w.takeNACKs(); len(nacks) != maxNACKs || nacks[0].Node != "other" {
		t.Errorf("%d NACKs are kept, the first of %s", len(nacks), nacks[0].Node)
	}
	if w.takeNACKs() != nil {
		t.Error("they are taken twice")
	}
	w.open(5, "n", "", resources.ExtensionType)
	w.reply(5, resources.ExtensionType, w.send(5, resources.ExtensionType, "estimator@1"), "it has a default")
	if got := w.takeNACKs(); got != nil {
		t.Errorf("%+v: the refusal of an extension config stops a plan", got)
	}
}

// TestLedgerSignals checks that a reply and the end of a stream are signalled, and that a
// closed stream is forgotten.
func TestLedgerSignals(t *testing.T) {
	w := &wire{Ledger: NewLedger(nil), t: t}
	signalled := func(what string) {
		t.Helper()
		select {
		case <-w.Changed():
		default:
			t.Error("not signalled:", what)
		}
	}
	w.open(1, "n", "", resources.ClusterType)
	signalled("a request")
	w.reply(1, resources.ClusterType, w.send(1, resources.ClusterType, "a@1"), "")
	signalled("an ACK")
	w.OnDeltaStreamClosed(1, nil)
	signalled("the end of a stream")
	err := w.OnStreamDeltaRequest(1, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: resources.ClusterType})
	testkit.WantError(t, err, "not opened")
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
		for i := range int64(maxDisconnected + 1) {
			w.open(10+i, fmt.Sprint("n", i), "", resources.ClusterType)
			w.OnDeltaStreamClosed(10+i, nil)
		}
		if w.nodes["back"] == nil || w.nodes["n0"] != nil || w.nodes["n1"] == nil {
			t.Errorf("%d nodes are kept, back is %+v", len(w.nodes), w.nodes["back"])
		}
	})
}

// TestSlotReplies checks that replies about policy slots of known kinds are recorded by slot,
// also those of a proxy, until the slot is removed, and that they stop no plan.
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
	if got := w.takeNACKs(); len(got) != 0 {
		t.Errorf("passed on %+v", got)
	}
}

// TestNodesOfARestartedControlPlane checks that proxies are not current before a new process has published a plan. One
// that reconnects is then known to have it by the versions that its first requests name.
func TestNodesOfARestartedControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := View(7, []policies.Tokens{10}, "a", "b")
		had := testkit.Must(resources.Build(v))
		l := NewLedger(nil)
		testkit.NoError(t, l.OnDeltaStreamOpen(t.Context(), 1, ""))
		for _, typ := range planrollout.AwaitedTypes() {
			r := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "envoy"}, TypeUrl: typ, InitialResourceVersions: make(map[string]string)}
			for _, has := range had.All(typ) {
				r.InitialResourceVersions[has.Name] = has.Version
				r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, has.Name)
			}
			testkit.NoError(t, l.OnStreamDeltaRequest(1, r))
		}
		testkit.NoError(t, l.OnDeltaStreamOpen(t.Context(), 2, ""))
		testkit.NoError(t, l.OnStreamDeltaRequest(2, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "new"}, TypeUrl: resources.ClusterType}))
		p := testkit.Must(New(Config{Cache: noCache{}, Ledger: l}))
		for _, n := range p.Status().Nodes {
			if n.State != "following" || n.Epoch != 0 || !strings.Contains(n.Reason, "published no plan yet") {
				t.Errorf("%s before the first plan: %s, epoch %d, %q", n.ID, n.State, n.Epoch, n.Reason)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		p.Submit(v)
		synctest.Wait()
		if n := p.Status().Nodes[0]; n.State != "current" || n.Epoch != 7 || n.Reason != "" {
			t.Errorf("after it: %s, epoch %d, %q", n.State, n.Epoch, n.Reason)
		}
		cancel()
		<-done
	})
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
	if got.Epoch != 3 || got.Types["Cluster"] != (NodeType{Acked: 2, Pending: 2}) {
		t.Errorf("%+v, want the plan of its routes, and two responses without a reply", got)
	}
	w.reply(1, resources.ClusterType, fmt.Sprint(w.nonce), "no memory")
	fenced := groupView{GroupReport: planrollout.GroupReport{Fenced: map[string]string{"n": "late"}}}
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
	if n, known := p.countRequests(removed); n != 2*3+2*5+7 || !known {
		t.Errorf("%d requests, known %v", n, known)
	}
	if n, known := p.countRequests(nil); n != 0 || known {
		t.Errorf("of no endpoints: %d, known %v", n, known)
	}
	p.cfg.RequestCounter = counter{}
	if n, known := p.countRequests(removed); n != 0 || known {
		t.Errorf("without reports: %d, known %v", n, known)
	}
}

// TestEpochsAreBounded checks that the versions of the last route tables are known, and that
// health leaves them as they are.
func TestEpochsAreBounded(t *testing.T) {
	p := testkit.Must(New(Config{Cache: noCache{}, Ledger: NewLedger(nil)}))
	for i := range policies.Epoch(maxEpochs + 5) {
		for _, health := range []string{"well", "sick"} {
			p.rememberRoutes(planrollout.Apply{Epoch: i, Set: testkit.Must(resources.NewSet(
				&resources.Resource{Type: resources.RouteType, Name: "r", Version: fmt.Sprint(i)},
				&resources.Resource{Type: resources.EndpointType, Name: "e", Version: health}))})
		}
	}
	kept := p.state.epochs
	if _, forgotten := kept["3"]; len(kept) != maxEpochs+1 || forgotten || kept["4"] != 4 || kept["20"] != 20 {
		t.Errorf("%v are kept", kept)
	}
}

// TestTransitionsAreLogged checks the attributes of a transition's log.
func TestTransitionsAreLogged(t *testing.T) {
	var log testkit.Log
	p := testkit.Must(New(Config{Cache: noCache{}, Ledger: NewLedger(nil), Logger: log.Logger()}))
	p.logNote(planrollout.Note{Text: "plan settled in group"})
	p.logNote(planrollout.Note{Warn: true, Text: "node fenced", Group: "g", Node: "n", Epoch: 7, Why: "late"})
	for _, want := range []string{"level=INFO msg=\"plan settled in group\"\n", "level=WARN msg=\"node fenced\" group=g node=n epoch=7 reason=late\n"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, &log)
		}
	}
}

// TestLedgerWakesPublisher checks that what the ledger alone has recorded, a NACK that is
// the node's last reply, reaches the rollout and the log at once.
func TestLedgerWakesPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		w := &wire{Ledger: NewLedger(nil), t: t}
		p := testkit.Must(New(Config{Cache: noCache{}, Ledger: w.Ledger, Logger: log.Logger()}))
		stop := testkit.Run(t, func(ctx context.Context) error { return p.Run(ctx) })
		defer stop()
		w.open(1, "n", "", resources.ClusterType)
		w.reply(1, resources.ClusterType, w.send(1, resources.ClusterType, "a@1"), "no")
		synctest.Wait()
		if log.Count("node refused a version") != 1 {
			t.Errorf("not logged:\n%s", &log)
		}
	})
}
