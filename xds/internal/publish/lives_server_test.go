package publish

import (
	"fmt"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/xds/internal/rollout"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// The server's half of a life: package cache and its streams, as far as the
// publisher and the ledger can tell.

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
