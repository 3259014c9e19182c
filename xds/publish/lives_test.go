package publish

import (
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/publish/group"
	"github.com/cascadeinfer/cascade/xds/publish/rollout"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// This file plays thousands of short lives of a small fleet against the real
// publisher, rollout and ledger, with resources that are words, so that a life
// takes a fraction of a millisecond. Every delivery is a choice of the seed.

// toySet renders a view as words: a cluster and its endpoints for every stage
// in use, and a route table that says which plan it is of.
func toySet(v resources.View) (resources.Set, error) {
	stages := 0
	for _, p := range append(slices.Clone(v.Plans), v.Previous...) {
		stages = max(stages, len(p.Stages))
	}
	var all []*resources.Resource
	add := func(typ, name, body string) {
		all = append(all, &resources.Resource{Type: typ, Name: name, Version: resources.Version([]byte(typ + name + body)), Body: []byte(body)})
	}
	health := make(map[policies.ReplicaID]resources.Endpoint)
	for _, e := range v.Endpoints {
		health[e.ID] = e
	}
	for k := range stages {
		members := make(map[policies.ReplicaID]bool)
		for _, p := range append(slices.Clone(v.Plans), v.Previous...) {
			if k < len(p.Stages) {
				for _, id := range p.Stages[k].Replicas {
					members[id] = true
				}
			}
		}
		var words []string
		for _, id := range slices.Sorted(maps.Keys(members)) {
			if e, ok := health[id]; ok {
				words = append(words, fmt.Sprintf("%s:%d:%d", id, e.Health, e.Weight))
			}
		}
		add(resources.ClusterType, clusterOf(k), v.Settings.AccessLog)
		add(resources.EndpointType, serviceOfStage(k), strings.Join(words, " "))
	}
	add(resources.ListenerType, "l", "l")
	add(resources.RouteType, "r", fmt.Sprint("plan ", v.Plans[0].Epoch))
	return resources.NewSet(all...)
}

func clusterOf(k int) string      { return fmt.Sprint("c", k) }
func serviceOfStage(k int) string { return fmt.Sprint("e", k) }

// life is one run.
type life struct {
	t      *testing.T
	seed   uint64
	r      *rand.Rand
	pub    *Publisher
	nodes  []*simNode
	plans  map[string]policies.Plan // by the body of the route table
	shown  map[string]resources.Set
	bodies map[string][]byte // by version
	wicked uint32            // share of new versions that every proxy refuses, in percent
	tame   map[string]bool   // versions that are never refused
	first  map[string]string // route version -> groups that were sent it, in order
	signal chan struct{}
	sent   int
	wanted int  // when the last table was, and when a node came or went last,
	churn  int  // by what happened
	kept   bool // a refused version was sent because nothing else was known

	verbose bool
	said    int
	log     []string
}

// simNode is a proxy, with one stream per type or one for all.
type simNode struct {
	l        *life
	id       string
	group    string
	perType  bool
	odd      bool // it alone refuses things
	up       bool
	left     time.Time                                 // when it went
	excused  bool                                      // it was away for too long, until it has caught up
	has      map[string]map[string]*resources.Resource // by type and name
	subs     map[string]*simSub
	ready    bool // it has asked for listeners and routes
	withheld *discoveryv3.DeltaDiscoveryRequest
	refused  map[string]bool // endpoints, or removed; a cluster does not wait for those
}

// simSub is a subscription on both ends of its stream.
type simSub struct {
	stream   int64
	begun    bool // the server has heard of it
	wildcard bool
	names    map[string]bool
	returned map[string]string // as the server believes
	waiting  bool              // the server has sent something that was not replied to
	nonce    int
	down     []*discoveryv3.DeltaDiscoveryResponse // to the node
	up       []*discoveryv3.DeltaDiscoveryRequest  // to the server
	lost     bool                                  // an acknowledgement was
}

var simTypes = []string{resources.ClusterType, resources.EndpointType, resources.ListenerType, resources.RouteType}

func newLife(t *testing.T, seed uint64) *life {
	l := &life{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 1)), plans: make(map[string]policies.Plan),
		shown: make(map[string]resources.Set), bodies: make(map[string][]byte), tame: make(map[string]bool), first: make(map[string]string),
		signal: make(chan struct{}, 1),
	}
	groups, err := group.New([]group.Rule{{Name: "a", Nodes: []string{"a*"}}, {Name: "b", Nodes: []string{"b*"}}})
	if err != nil {
		t.Fatal(err)
	}
	watch := time.Duration(l.r.IntN(3)) * 500 * time.Millisecond
	if l.pub, err = New(Config{Target: l, Ledger: NewLedger(nil), Groups: groups, Watch: watch}); err != nil {
		t.Fatal(err)
	}
	l.pub.rollout, err = rollout.New(rollout.Config{
		Groups: groups.Names(), Watch: watch, Bound: l.pub.cfg.Bound,
		Build: toySet, Prove: func(resources.Set) error { return nil }, Covers: l.covers,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.pub.timer = time.NewTimer(time.Hour)
	for i := range 3 + l.r.IntN(3) {
		g := []string{"a", "b", ""}[l.r.IntN(3)]
		n := &simNode{l: l, id: fmt.Sprint(g+"n", i), group: g, perType: l.r.IntN(2) == 0, has: make(map[string]map[string]*resources.Resource)}
		if g == "" {
			n.id = fmt.Sprint("z", i)
		}
		for _, typ := range simTypes {
			n.has[typ] = make(map[string]*resources.Resource)
		}
		l.nodes = append(l.nodes, n)
	}
	return l
}

func (l *life) covers(s resources.Set, v resources.View) error {
	if missing := lacking(v.Plans[0], v, func(k int) *resources.Resource { return s.Get(resources.EndpointType, serviceOfStage(k)) }); missing != "" {
		return fmt.Errorf("%s", missing)
	}
	return nil
}

// lacking tells the first stage of a plan whose endpoints lack a member.
func lacking(p policies.Plan, v resources.View, get func(k int) *resources.Resource) string {
	known := make(map[policies.ReplicaID]bool)
	for _, e := range v.Endpoints {
		known[e.ID] = true
	}
	for k, st := range p.Stages {
		e := get(k)
		if e == nil {
			return fmt.Sprint("stage ", k, " has no endpoints")
		}
		for _, id := range st.Replicas {
			if (len(known) == 0 || known[id]) && !strings.Contains(" "+string(e.Body), " "+string(id)+":") {
				return fmt.Sprint("stage ", k, " lacks ", id)
			}
		}
	}
	return ""
}

// say keeps what happened, for a life that fails.
func (l *life) say(format string, args ...any) {
	l.said++
	if l.verbose {
		for i, arg := range args {
			if s, ok := arg.(resources.Set); ok {
				args[i] = words(s)
			}
		}
		l.log = append(l.log, fmt.Sprintf(format, args...))
	}
}

// A life that fails is lived again, to tell how it came to that.
func (l *life) fail(format string, args ...any) {
	l.t.Helper()
	if !l.verbose {
		for _, n := range l.nodes {
			if n.up {
				n.disconnect()
			}
		}
		again := newLife(l.t, l.seed)
		again.verbose = true
		again.live()
	}
	l.describe()
	l.t.Fatalf("seed %d: %s\n%s", l.seed, fmt.Sprintf(format, args...), strings.Join(l.log[max(0, len(l.log)-180):], "\n"))
}

// describe says what every node has, and what the ledger believes.
func (l *life) describe() {
	for _, n := range l.nodes {
		l.say("%s up %t, current %t, excused %t, withheld %t", n.id, n.up, n.current(), n.excused, n.withheld != nil)
		for _, typ := range simTypes {
			if sub := n.subs[typ]; sub != nil {
				l.say("  %s: has %v, believed %v, waiting %t, %d down, %d up", shortType(typ), sorted(n.has[typ]), sub.returned, sub.waiting, len(sub.down), len(sub.up))
			}
		}
		if l.pub.cfg.Ledger.nodes[n.id] == nil {
			continue
		}
		for _, s := range l.pub.cfg.Ledger.nodes[n.id].streams {
			for typ, sub := range s.types {
				l.say("  ledger: %s names %v, applied %v, %d sent", shortType(typ), sorted(sub.names), sub.applied, len(sub.sent))
			}
		}
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Set implements Target.
func (l *life) Set(g string, s resources.Set) {
	if l.demoted(g, s) {
		for _, n := range l.nodes {
			n.excused = n.excused || n.group == g
		}
	}
	l.shown[g] = s
	for _, typ := range simTypes {
		for _, r := range s.All(typ) {
			l.bodies[r.Version] = r.Body
		}
	}
	l.say("show %q: %v", g, s)
	for _, n := range l.nodes {
		if n.group == g {
			for _, typ := range simTypes {
				n.tell(typ)
			}
		}
	}
}

func words(s resources.Set) string {
	var out []string
	for _, typ := range simTypes {
		for _, r := range s.All(typ) {
			if typ == resources.EndpointType || typ == resources.RouteType {
				out = append(out, fmt.Sprintf("%s=%q %.4s%s", r.Name, r.Body, r.Version, strings.TrimPrefix(r.Version, rollout.Plain(r.Version))))
			}
		}
	}
	return strings.Join(out, ", ")
}

// demoted reports whether a group is shown other routes in one step: a plan that
// nobody had acknowledged was everywhere, and is refused by the first who sees it.
func (l *life) demoted(name string, s resources.Set) bool {
	before := l.shown[name]
	if before.Len(resources.RouteType) == 0 || before.Equal(s, resources.RouteType) {
		return false
	}
	for _, g := range l.pub.rollout.Report().Groups {
		if g.Name == name && g.Phase == rollout.Idle {
			return true
		}
	}
	return false
}

// Unanswered implements Target.
func (l *life) Unanswered(types []string, ids map[string]bool) {
	for _, n := range l.nodes {
		for _, typ := range types {
			if sub := n.subs[typ]; n.up && sub != nil && sub.waiting {
				ids[n.id] = true
			}
		}
	}
}

// Changed implements Target.
func (l *life) Changed() <-chan struct{} { return l.signal }

// tell sends what a subscription lacks, unless an answer is awaited.
func (n *simNode) tell(typ string) {
	sub, set := n.subs[typ], n.l.shown[n.group]
	if !n.up || sub == nil || !sub.begun || sub.waiting {
		return
	}
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ}
	for _, r := range set.All(typ) {
		if (sub.wildcard || sub.names[r.Name]) && sub.returned[r.Name] != r.Version {
			n.l.check(n, r)
			sub.returned[r.Name] = r.Version
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: r.Name, Version: r.Version})
		}
	}
	for name := range sub.returned {
		if set.Get(typ, name) == nil && sub.returned[name] != "-" {
			delete(sub.returned, name)
			resp.RemovedResources = append(resp.RemovedResources, name)
		}
	}
	for name := range sub.names {
		if set.Get(typ, name) == nil && sub.returned[name] != "-" {
			sub.returned[name] = "-" // it does not exist, and is told so once
			resp.RemovedResources = append(resp.RemovedResources, name)
		}
	}
	if len(resp.Resources)+len(resp.RemovedResources) == 0 && (sub.nonce > 0 || !sub.wildcard) {
		return
	}
	slices.Sort(resp.RemovedResources)
	resp.RemovedResources = slices.Compact(resp.RemovedResources)
	sub.nonce++
	resp.Nonce = fmt.Sprint(sub.nonce)
	sub.waiting = true
	n.l.sent++
	n.l.pub.cfg.Ledger.OnStreamDeltaResponse(sub.stream, nil, resp)
	sub.down = append(sub.down, resp)
}

// check holds what is sent against what may be.
func (l *life) check(n *simNode, r *resources.Resource) {
	for _, f := range l.pub.rollout.Refusals() {
		if f.Type == r.Type && f.Name == r.Name && f.Version == r.Version && !l.excepted(n.group, r) {
			l.fail("%s is sent %s %s %q again, which %s refused", n.id, r.Type, r.Name, r.Body, f.Node)
		}
	}
	if r.Type != resources.RouteType || string(r.Body) != fmt.Sprint("plan ", l.pub.rollout.Report().Target) && len(l.first) > 0 {
		return
	}
	if !strings.Contains(l.first[r.Version], "["+n.group+"]") {
		// A plan comes to a further group only when the ones before have it. Groups
		// that are empty get it together, and may fill up then.
		for _, o := range l.nodes {
			if l.wanted > l.churn && o.steady() && o.group != n.group && strings.Contains(l.first[r.Version], "["+o.group+"]") {
				shown, has := l.shown[o.group].Get(r.Type, r.Name), o.has[r.Type][r.Name]
				if shown.Version == r.Version && (has == nil || has.Version != r.Version) {
					l.fail("%s is sent %q, which %s of a group before has not acknowledged", n.id, r.Body, o.id)
				}
			}
		}
		if _, begun := l.first[r.Version]; begun || len(l.first) > 0 {
			l.first[r.Version] += "[" + n.group + "]"
		} else {
			l.first[r.Version] = "[a][b][]" // the first table goes to all
		}
	}
}

// excepted reports whether a group may be sent what was refused: it goes back to
// other routes and has taken the resource, or nothing can stand in for it.
func (l *life) excepted(group string, r *resources.Resource) bool {
	for _, g := range l.pub.rollout.Report().Groups {
		if g.Name != group || g.Kept == 0 || r.Type == resources.RouteType {
			continue
		}
		if !g.Backing {
			l.kept = true
		}
		return true
	}
	return false
}

// excuse notes that the node, as far as the publisher knows, was away or late for
// longer than anybody waits. It counts again when it has all that it is shown.
func (n *simNode) excuse() {
	for _, sub := range n.subs {
		if !n.left.IsZero() && !sub.begun && time.Since(n.left) >= absence {
			n.excused = true
		}
	}
	for _, g := range n.l.pub.state.report.Groups {
		if _, fenced := g.Fenced[n.id]; fenced {
			n.excused = true
		}
	}
}

// steady reports whether the publisher must wait for the node.
func (n *simNode) steady() bool {
	n.excuse()
	if !n.up || n.excused || !n.ready || len(n.has[resources.RouteType]) == 0 {
		return false
	}
	return true
}

// connect opens the node's streams, with what it has.
func (n *simNode) connect() {
	n.l.say("%s connects", n.id)
	n.l.churn = n.l.said
	n.up, n.withheld, n.subs, n.refused = true, nil, make(map[string]*simSub), make(map[string]bool)
	n.open(resources.ClusterType)
	if names := n.services(); len(names) > 0 {
		n.open(resources.EndpointType, names...)
	}
	if n.ready {
		n.open(resources.ListenerType)
		n.open(resources.RouteType, "r")
	}
}

var simStreams int64

func (n *simNode) open(typ string, names ...string) {
	sub := &simSub{wildcard: len(names) == 0, names: make(map[string]bool), returned: make(map[string]string)}
	ledger := n.l.pub.cfg.Ledger
	if shared := n.anyStream(); n.perType || shared == 0 {
		simStreams++
		sub.stream = simStreams
		_ = ledger.OnDeltaStreamOpen(n.l.t.Context(), sub.stream, "")
	} else {
		sub.stream = shared
	}
	n.subs[typ] = sub
	req := &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: n.id}, TypeUrl: typ, ResourceNamesSubscribe: names, InitialResourceVersions: make(map[string]string),
	}
	for name, r := range n.has[typ] {
		req.InitialResourceVersions[name] = r.Version
	}
	sub.up = append(sub.up, req)
}

func (n *simNode) anyStream() int64 {
	for _, sub := range n.subs {
		return sub.stream
	}
	return 0
}

// services are the endpoints that the node's clusters want, sorted.
func (n *simNode) services() []string {
	var names []string
	for name := range n.has[resources.ClusterType] {
		names = append(names, "e"+name[1:])
	}
	slices.Sort(names)
	return names
}

// disconnect ends all streams. What was on its way is lost.
func (n *simNode) disconnect() {
	n.l.say("%s goes", n.id)
	n.l.churn = n.l.said
	n.up = false
	for _, sub := range n.subs {
		if sub.begun || n.left.IsZero() {
			n.left = time.Now()
		}
	}
	for _, id := range slices.Compact(slices.Sorted(func(yield func(int64) bool) {
		for _, sub := range n.subs {
			if !yield(sub.stream) {
				return
			}
		}
	})) {
		n.l.pub.cfg.Ledger.OnDeltaStreamClosed(id, nil)
	}
	n.subs = nil
	n.l.poke()
}

func (l *life) poke() {
	select {
	case l.signal <- struct{}{}:
	default:
	}
}

// hear has the server take the node's next message of a type.
func (n *simNode) hear(typ string) {
	sub := n.subs[typ]
	req := sub.up[0]
	sub.up = sub.up[1:]
	n.l.say("%s says %s nonce %q subscribes %v", n.id, shortType(typ), req.GetResponseNonce(), req.GetResourceNamesSubscribe())
	for _, name := range req.GetResourceNamesSubscribe() {
		sub.names[name] = true
		delete(sub.returned, name)
	}
	for name, v := range req.GetInitialResourceVersions() {
		sub.returned[name] = v
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		delete(sub.names, name)
		delete(sub.returned, name)
	}
	if err := n.l.pub.cfg.Ledger.OnStreamDeltaRequest(sub.stream, req); err != nil {
		n.l.fail("%v", err)
	}
	sub.begun, sub.waiting = true, false
	n.l.poke()
	n.tell(typ)
}

// apply has the node take the server's next message of a type.
func (n *simNode) apply(typ string) {
	sub := n.subs[typ]
	resp := sub.down[0]
	sub.down = sub.down[1:]
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: resp.Nonce}
	n.l.say("%s hears %s nonce %q: %d, %v", n.id, shortType(typ), resp.Nonce, len(resp.Resources), resp.RemovedResources)
	var bad []string
	for _, r := range resp.Resources {
		if n.refuses(typ, r) {
			bad = append(bad, r.Name)
		}
	}
	if len(bad) > 0 {
		ack.ErrorDetail = &rpcstatus.Status{Message: "not possible"}
		if typ == resources.ClusterType {
			ack.ErrorDetail.Message = "Error adding/updating cluster(s) " + strings.Join(bad, ": bad, ") + ": bad"
		}
		n.l.say("%s refuses %s %v", n.id, shortType(typ), bad)
	}
	for _, r := range resp.Resources {
		if len(bad) > 0 && (typ == resources.EndpointType || slices.Contains(bad, r.Name)) {
			n.refused[r.Name] = true
			// A node that begins with what it cannot take has nothing to lose.
			n.excused = n.excused || len(n.has[resources.RouteType]) == 0
		}
	}
	if len(bad) == 0 || typ == resources.ClusterType {
		for _, r := range resp.Resources {
			if !slices.Contains(bad, r.Name) && (typ != resources.EndpointType || slices.Contains(n.services(), r.Name)) {
				if typ == resources.ClusterType && n.has[typ][r.Name] == nil {
					delete(n.refused, "e"+r.Name[1:]) // a new cluster waits anew
				}
				n.has[typ][r.Name] = &resources.Resource{Type: typ, Name: r.Name, Version: r.Version, Body: n.l.bodies[r.Version]}
			}
		}
		for _, name := range resp.RemovedResources {
			delete(n.has[typ], name)
			n.refused[name] = n.refused[name] || typ == resources.EndpointType
		}
	}
	n.reply(typ, ack)
	n.warm(typ)
	n.verify()
}

// reply sends an acknowledgement, or loses it.
func (n *simNode) reply(typ string, ack *discoveryv3.DeltaDiscoveryRequest) {
	sub := n.subs[typ]
	switch {
	case sub.lost:
	case typ == resources.ClusterType && n.warming() && ack.ErrorDetail == nil:
		n.withheld = ack
	default:
		sub.up = append(sub.up, ack)
	}
}

func (n *simNode) warming() bool {
	for _, name := range n.services() {
		if n.has[resources.EndpointType][name] == nil && !n.refused[name] {
			return true
		}
	}
	return false
}

// warm does what follows from new clusters and endpoints.
func (n *simNode) warm(typ string) {
	if typ == resources.ClusterType {
		want := n.services()
		if sub := n.subs[resources.EndpointType]; sub == nil && len(want) > 0 {
			n.open(resources.EndpointType, want...)
		} else if sub != nil {
			change := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.EndpointType}
			asked := n.asked(sub)
			for _, name := range want {
				if !asked[name] {
					change.ResourceNamesSubscribe = append(change.ResourceNamesSubscribe, name)
				}
			}
			for name := range asked {
				if !slices.Contains(want, name) {
					change.ResourceNamesUnsubscribe = append(change.ResourceNamesUnsubscribe, name)
					delete(n.has[resources.EndpointType], name)
				}
			}
			slices.Sort(change.ResourceNamesUnsubscribe)
			if len(change.ResourceNamesSubscribe)+len(change.ResourceNamesUnsubscribe) > 0 {
				sub.up = append(sub.up, change)
			}
		}
	}
	if n.warming() || len(n.has[resources.ClusterType]) == 0 {
		return
	}
	if n.withheld != nil {
		n.subs[resources.ClusterType].up = append(n.subs[resources.ClusterType].up, n.withheld)
		n.withheld = nil
	}
	if !n.ready {
		n.ready = true
		n.open(resources.ListenerType)
		n.open(resources.RouteType, "r")
	}
}

// asked is what the node has subscribed to, messages on their way included.
func (n *simNode) asked(sub *simSub) map[string]bool {
	out := maps.Clone(sub.names)
	for _, req := range sub.up {
		for _, name := range req.GetResourceNamesSubscribe() {
			out[name] = true
		}
		for _, name := range req.GetResourceNamesUnsubscribe() {
			delete(out, name)
		}
	}
	return out
}

// refuses says what proxies refuse: a fixed share of all versions.
func (n *simNode) refuses(typ string, r *discoveryv3.Resource) bool {
	version := rollout.Plain(r.Version)
	if n.l.tame[version] || typ == resources.ListenerType {
		return false
	}
	h := fnv.New32a()
	fmt.Fprint(h, version, n.l.seed)
	if n.odd {
		fmt.Fprint(h, n.id)
	}
	return h.Sum32()%100 < n.l.wicked
}

// verify holds a node's routes against its clusters and endpoints.
func (n *simNode) verify() {
	if !n.steady() {
		return
	}
	routes := n.has[resources.RouteType]["r"]
	plan := n.l.plans[string(routes.Body)]
	for k := range plan.Stages {
		if n.has[resources.ClusterType][clusterOf(k)] == nil {
			n.l.fail("%s routes by %q to %s, which it does not have", n.id, routes.Body, clusterOf(k))
		}
	}
	if missing := lacking(plan, resources.View{}, func(k int) *resources.Resource {
		return n.has[resources.EndpointType][serviceOfStage(k)]
	}); missing != "" {
		n.l.fail("%s routes by %q, but %s", n.id, routes.Body, missing)
	}
}

// current reports whether the node has what its group is shown, and nothing else
// is on its way.
func (n *simNode) current() bool {
	if !n.up {
		return false
	}
	for _, sub := range n.subs {
		if len(sub.down) > 0 {
			return false
		}
	}
	set := n.l.shown[n.group]
	for _, typ := range simTypes {
		if len(n.has[typ]) != set.Len(typ) {
			return false
		}
		for name, r := range n.has[typ] {
			if have := set.Get(typ, name); have == nil || have.Version != r.Version {
				return false
			}
		}
	}
	return true
}

// look lets the publisher see.
func (l *life) look() {
	for _, n := range l.nodes {
		if n.excused && n.current() {
			n.excused = false
		}
		n.excuse()
	}
	select {
	case <-l.pub.timer.C:
		l.say("time passes")
		l.pub.look()
	default:
	}
	select {
	case <-l.signal:
	case <-l.pub.cfg.Ledger.Changed():
	default:
		return
	}
	l.pub.look()
}

// deliver moves one message, and reports whether there was one.
func (l *life) deliver() bool {
	type way struct {
		n    *simNode
		typ  string
		down bool
	}
	var ways []way
	for _, n := range l.nodes {
		if !n.up {
			continue
		}
		for _, typ := range simTypes {
			if sub := n.subs[typ]; sub != nil {
				if len(sub.up) > 0 {
					ways = append(ways, way{n, typ, false})
				}
				if len(sub.down) > 0 {
					ways = append(ways, way{n, typ, true})
				}
			}
		}
	}
	if len(ways) == 0 {
		return false
	}
	w := ways[l.r.IntN(len(ways))]
	if w.down {
		w.n.apply(w.typ)
	} else {
		w.n.hear(w.typ)
	}
	return true
}

// want submits a random table.
func (l *life) want(epoch policies.Epoch, before resources.View) resources.View {
	v := before
	if epoch > 1 && l.r.IntN(3) == 0 { // health and weights
		v.Endpoints = slices.Clone(v.Endpoints)
		e := &v.Endpoints[l.r.IntN(len(v.Endpoints))]
		e.Health, e.Weight = resources.Health(l.r.IntN(2)), uint32(1+l.r.IntN(4))
	} else {
		v = resources.View{Models: []resources.Model{{Name: "m"}}}
		if l.r.IntN(4) == 0 {
			v.Settings.AccessLog = fmt.Sprint("log", epoch)
		} else {
			v.Settings = before.Settings
		}
		stages := 1 + l.r.IntN(3)
		p := policies.Plan{Model: "m", Epoch: epoch, Stages: make([]policies.Stage, stages)}
		for i := range 5 {
			if epoch > 1 && l.r.IntN(6) == 0 && i >= stages {
				continue // removed
			}
			id := policies.ReplicaID(fmt.Sprint("r", i))
			k := l.r.IntN(stages)
			if i < stages {
				k = i
			}
			p.Stages[k].Replicas = append(p.Stages[k].Replicas, id)
			v.Endpoints = append(v.Endpoints, resources.Endpoint{ID: id, Model: "m", Address: fmt.Sprint("10.0.0.", i, ":1"), Weight: 1})
		}
		v.Plans = []policies.Plan{p}
	}
	s, err := toySet(v)
	if err != nil {
		l.fail("%v", err)
	}
	l.plans[fmt.Sprint("plan ", v.Plans[0].Epoch)] = v.Plans[0]
	if epoch == 1 {
		for _, typ := range simTypes {
			for _, r := range s.All(typ) {
				l.tame[r.Version] = true
			}
		}
	}
	l.say("want %v", s)
	l.wanted = l.said
	l.pub.look()
	l.pub.step(rollout.Want{Table: &rollout.Table{View: v, Set: s}})
	return v
}

// calm delivers everything and lets time pass until nothing happens.
func (l *life) calm() {
	quiet := 0
	for range 60 {
		for _, n := range l.nodes {
			if !n.up {
				n.connect()
			}
		}
		for l.deliver() {
			l.look()
		}
		l.look()
		time.Sleep(time.Second)
		l.look()
		if quiet++; !l.settled() {
			quiet = 0
		}
		if quiet == 3 {
			return
		}
	}
}

// settled reports whether there is nothing to do any more.
func (l *life) settled() bool {
	for _, g := range l.pub.state.report.Groups {
		if g.Phase != rollout.Idle || len(g.Fenced) > 0 {
			return false
		}
	}
	return !slices.ContainsFunc(l.nodes, func(n *simNode) bool { return !n.current() })
}

func (l *life) live() {
	v := l.want(1, resources.View{})
	for _, n := range l.nodes {
		if l.r.IntN(4) > 0 {
			n.connect()
		}
	}
	for l.deliver() {
		l.look()
	}
	l.look()
	if l.r.IntN(3) > 0 {
		l.wicked = uint32(l.r.IntN(30))
	}
	if l.r.IntN(8) == 0 {
		l.nodes[l.r.IntN(len(l.nodes))].odd = true
	}
	epoch := policies.Epoch(1)
	for range 60 {
		n := l.nodes[l.r.IntN(len(l.nodes))]
		switch x := l.r.IntN(100); {
		case x < 8:
			epoch++
			v = l.want(epoch, v)
		case x < 11 && n.up:
			n.disconnect()
		case x < 16 && !n.up:
			n.connect()
		case x < 18 && n.up:
			if sub := n.subs[simTypes[l.r.IntN(4)]]; sub != nil {
				sub.lost = true // its acknowledgements, until it connects again
			}
		case x < 30:
			time.Sleep(time.Duration(l.r.Int64N(int64(1200 * time.Millisecond))))
		default:
			for range 4 {
				l.deliver()
				l.look()
			}
		}
		l.look()
	}
	// In the end everybody answers.
	for _, n := range l.nodes {
		if n.up {
			n.disconnect()
		}
	}
	l.calm()
	rep := l.pub.rollout.Report()
	odd := slices.ContainsFunc(l.nodes, func(n *simNode) bool { return n.odd }) ||
		slices.ContainsFunc(rep.Groups, func(g rollout.GroupReport) bool { return g.Kept > 0 })
	for _, g := range rep.Groups {
		if g.Phase != rollout.Idle || !odd && len(g.Fenced) > 0 {
			l.fail("group %q ends in %s, fenced %v; report %+v", g.Name, g.Phase, g.Fenced, rep)
		}
		if rep.Held == "" && g.Epoch != rep.Wanted {
			l.fail("group %q ends at %d, wanted %d, and nothing holds it", g.Name, g.Epoch, rep.Wanted)
		}
	}
	for _, n := range l.nodes {
		if !odd && !n.current() {
			l.fail("%s ends without what it is shown", n.id)
		}
	}
}

var livesFlag = flag.Int("lives", 1000, "how many lives TestLives lives; 10,000 take half a minute")

// TestLives checks, over many seeds, that no node ever has a route whose
// clusters or endpoints it lacks, that nothing refused is sent again, that plans
// go through the groups in turn, and that every life ends settled.
func TestLives(t *testing.T) {
	lives, quarantined, sent, kept := *livesFlag, 0, 0, 0
	if testing.Short() {
		lives = min(lives, 300)
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(lives) {
			l := newLife(t, seed)
			l.live()
			quarantined += len(l.pub.rollout.Refusals())
			sent += l.sent
			if l.kept {
				kept++
			}
		}
	})
	t.Logf("%d lives, %d messages, %d versions quarantined; in %d lives one was sent for want of another", lives, sent, quarantined, kept)
	if kept > lives/50 {
		t.Error("that is more than in one life of 50")
	}
	if quarantined == 0 {
		t.Error("nothing was ever refused")
	}
}
