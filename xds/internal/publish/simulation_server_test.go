package publish

import (
	"fmt"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// The server of a simulation: what the publisher and the ledger see of package
// cache and its streams.

// Set implements Cache.
func (sim *simulation) Set(g string, s resources.Set) {
	sim.shown[g] = s
	if v := s.Get(resources.RouteType, resources.RouteName).Version; !slices.Contains(sim.shownIn[v], g) {
		if sim.shownIn[v] = append(sim.shownIn[v], g); len(sim.shownIn[v]) == 1 {
			sim.begun[v] = sim.said
		}
	}
	for _, typ := range simTypes {
		for _, r := range s.All(typ) {
			sim.bodies[r.Version] = r.Body
		}
	}
	sim.logf("show %q: %s", g, s.Get(resources.RouteType, resources.RouteName).Body)
	for _, n := range sim.nodes {
		if n.group == g {
			for _, typ := range simTypes {
				n.sendUpdate(typ)
			}
		}
	}
}

// Unanswered implements Cache.
func (sim *simulation) Unanswered(types []string, ids map[string]bool) {
	for _, n := range sim.nodes {
		for _, typ := range types {
			if sub := n.subs[typ]; n.up && sub != nil && sub.unreplied {
				ids[n.id] = true
			}
		}
	}
}

// Changed implements Cache.
func (sim *simulation) Changed() <-chan struct{} { return sim.signal }

// sendUpdate sends what a subscription lacks, unless it waits for a reply.
func (n *simNode) sendUpdate(typ string) {
	sub := n.subs[typ]
	set, served := n.sim.shown[n.group]
	if !served || !n.up || sub == nil || !sub.begun || sub.unreplied {
		return
	}
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ}
	for _, r := range set.All(typ) {
		if (sub.wildcard && !r.Unlisted || sub.names[r.Name]) && sub.returned[r.Name] != r.Version {
			n.sim.checkSent(n, r)
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
			sub.returned[name] = "-" // it does not exist, which is sent once
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
	sub.unreplied = true
	n.sim.sent++
	n.sim.pub.cfg.Ledger.OnStreamDeltaResponse(sub.stream, nil, resp)
	sub.toNode = append(sub.toNode, resp)
}

func (sim *simulation) signalChanged() {
	select {
	case sim.signal <- struct{}{}:
	default:
	}
}

// receiveRequest makes the server apply the node's next request of a type.
func (n *simNode) receiveRequest(typ string) {
	sub := n.subs[typ]
	req := sub.toServer[0]
	sub.toServer = sub.toServer[1:]
	n.sim.logf("%s says %s nonce %q subscribes %v", n.id, resources.ShortType(typ), req.GetResponseNonce(), req.GetResourceNamesSubscribe())
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
	if err := n.sim.pub.cfg.Ledger.OnStreamDeltaRequest(sub.stream, req); err != nil {
		n.sim.failf("%v", err)
	}
	sub.begun, sub.unreplied = true, false
	n.sim.signalChanged()
	n.sendUpdate(typ)
}
