package publish

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// The nodes of a simulation: proxies that apply, refuse and acknowledge as
// Envoy does.

// simNode is a proxy, with one stream per type or one for all.
type simNode struct {
	sim            *simulation
	id, group      string
	perType        bool
	picky          bool // it refuses versions that no other node refuses
	up             bool
	disconnectedAt time.Time
	excused        bool                                      // it was away for too long, until it has caught up
	has            map[string]map[string]*resources.Resource // by type and name
	subs           map[string]*simSubscription
	ready          bool // it has subscribed to listeners and routes
	withheld       *discoveryv3.DeltaDiscoveryRequest
	refused        map[string]bool // endpoints, or removed; a cluster does not wait for those
}

// simSubscription is a subscription on both ends of its stream.
type simSubscription struct {
	stream    int64
	begun     bool // the server has received a request
	wildcard  bool
	names     map[string]bool
	returned  map[string]string // what the server counts as delivered
	unreplied bool              // the server has sent a response without a reply
	nonce     int
	toNode    []*discoveryv3.DeltaDiscoveryResponse
	toServer  []*discoveryv3.DeltaDiscoveryRequest
	dropsAcks bool // an ACK was lost
}

var simTypes = []string{resources.ClusterType, resources.EndpointType, resources.ListenerType, resources.RouteType}

// connect opens the node's streams with the versions that it has.
func (n *simNode) connect() {
	n.sim.logf("%s connects", n.id)
	n.sim.churn = n.sim.said
	n.up, n.withheld, n.subs, n.refused = true, nil, make(map[string]*simSubscription), make(map[string]bool)
	n.open(resources.ClusterType)
	if names := n.services(); len(names) > 0 {
		n.open(resources.EndpointType, names...)
	}
	if n.ready {
		n.open(resources.ListenerType)
		n.open(resources.RouteType, resources.RouteName)
	}
}

var simStreams int64

func (n *simNode) open(typ string, names ...string) {
	sub := &simSubscription{wildcard: len(names) == 0, names: make(map[string]bool), returned: make(map[string]string)}
	ledger := n.sim.pub.cfg.Ledger
	if shared := n.anyStream(); n.perType || shared == 0 {
		simStreams++
		sub.stream = simStreams
		_ = ledger.OnDeltaStreamOpen(n.sim.t.Context(), sub.stream, "")
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
	sub.toServer = append(sub.toServer, req)
}

func (n *simNode) anyStream() int64 {
	for _, sub := range n.subs {
		return sub.stream
	}
	return 0
}

// services lists the endpoints of the node's clusters, sorted.
func (n *simNode) services() []string {
	var names []string
	for name := range n.has[resources.ClusterType] {
		names = append(names, serviceOf(name))
	}
	slices.Sort(names)
	return names
}

// disconnect ends all streams. Messages on their way are lost.
func (n *simNode) disconnect() {
	n.sim.logf("%s goes", n.id)
	n.sim.churn = n.sim.said
	n.up = false
	for _, sub := range n.subs {
		if sub.begun || n.disconnectedAt.IsZero() {
			n.disconnectedAt = time.Now()
		}
	}
	for _, id := range slices.Compact(slices.Sorted(func(yield func(int64) bool) {
		for _, sub := range n.subs {
			if !yield(sub.stream) {
				return
			}
		}
	})) {
		n.sim.pub.cfg.Ledger.OnDeltaStreamClosed(id, nil)
	}
	n.subs = nil
	n.sim.signalChanged()
}

// receiveResponse makes the node apply the server's next response of a type.
func (n *simNode) receiveResponse(typ string) {
	sub := n.subs[typ]
	resp := sub.toNode[0]
	sub.toNode = sub.toNode[1:]
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: resp.Nonce}
	n.sim.logf("%s hears %s nonce %q: %d, %v", n.id, resources.ShortType(typ), resp.Nonce, len(resp.Resources), resp.RemovedResources)
	var bad []string
	for _, r := range resp.Resources {
		if n.refuses(typ, r) {
			bad = append(bad, r.Name)
		}
	}
	if len(bad) > 0 {
		ack.ErrorDetail = &rpcstatus.Status{Message: "no\n" + bad[0]}
		if typ == resources.ClusterType {
			ack.ErrorDetail.Message = "Error adding/updating cluster(s) " + strings.Join(bad, ": bad, ") + ": bad"
		}
		n.sim.logf("%s refuses %s %v", n.id, resources.ShortType(typ), bad)
	}
	for _, r := range resp.Resources {
		if len(bad) > 0 && (typ == resources.EndpointType || slices.Contains(bad, r.Name)) {
			n.refused[r.Name] = true
			// A node that starts with a version that it refuses has no routes
			// to lose.
			n.excused = n.excused || len(n.has[resources.RouteType]) == 0
		}
	}
	if len(bad) == 0 || typ == resources.ClusterType {
		for _, r := range resp.Resources {
			if !slices.Contains(bad, r.Name) && (typ != resources.EndpointType || slices.Contains(n.services(), r.Name)) {
				if typ == resources.ClusterType && n.has[typ][r.Name] == nil {
					delete(n.refused, serviceOf(r.Name)) // a new cluster waits again
				}
				n.has[typ][r.Name] = &resources.Resource{Type: typ, Name: r.Name, Version: r.Version, Body: n.sim.bodies[r.Version]}
			}
		}
		for _, name := range resp.RemovedResources {
			delete(n.has[typ], name)
			n.refused[name] = n.refused[name] || typ == resources.EndpointType
		}
	}
	n.sendReply(typ, ack)
	n.finishWarming(typ)
	n.checkRoutes()
}

// sendReply sends a reply, or loses it.
func (n *simNode) sendReply(typ string, ack *discoveryv3.DeltaDiscoveryRequest) {
	sub := n.subs[typ]
	switch {
	case sub.dropsAcks:
	case typ == resources.ClusterType && n.warming() && ack.ErrorDetail == nil:
		n.withheld = ack
	default:
		sub.toServer = append(sub.toServer, ack)
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

// finishWarming does what follows from new clusters and endpoints.
func (n *simNode) finishWarming(typ string) {
	if typ == resources.ClusterType {
		want := n.services()
		if sub := n.subs[resources.EndpointType]; sub == nil && len(want) > 0 {
			n.open(resources.EndpointType, want...)
		} else if sub != nil {
			change := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.EndpointType}
			asked := n.subscribedNames(sub)
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
				sub.toServer = append(sub.toServer, change)
			}
		}
	}
	if n.warming() || len(n.has[resources.ClusterType]) == 0 {
		return
	}
	if n.withheld != nil {
		n.subs[resources.ClusterType].toServer = append(n.subs[resources.ClusterType].toServer, n.withheld)
		n.withheld = nil
	}
	if !n.ready {
		n.ready = true
		n.open(resources.ListenerType)
		n.open(resources.RouteType, resources.RouteName)
	}
}

// subscribedNames returns what the node has subscribed to, including requests
// on their way.
func (n *simNode) subscribedNames(sub *simSubscription) map[string]bool {
	out := maps.Clone(sub.names)
	for _, req := range sub.toServer {
		for _, name := range req.GetResourceNamesSubscribe() {
			out[name] = true
		}
		for _, name := range req.GetResourceNamesUnsubscribe() {
			delete(out, name)
		}
	}
	return out
}

// refuses reports whether the node refuses a version: proxies refuse a fixed
// share of all versions.
func (n *simNode) refuses(typ string, r *discoveryv3.Resource) bool {
	if n.sim.neverRefused[r.Version] || typ == resources.ListenerType {
		return false
	}
	h := fnv.New32a()
	fmt.Fprint(h, r.Version, n.sim.seed)
	if n.picky {
		fmt.Fprint(h, n.id)
	}
	return h.Sum32()%100 < n.sim.refusedPercent
}

// isCurrent reports whether the node has the set of its group and no message is
// on its way.
func (n *simNode) isCurrent() bool {
	if !n.up {
		return false
	}
	for _, sub := range n.subs {
		if len(sub.toNode) > 0 {
			return false
		}
	}
	set := n.sim.shown[n.group]
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
