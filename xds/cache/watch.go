package cache

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// watch is a client's request that waits for a change of one type. Exactly one
// of delta and sotw is set.
type watch struct {
	group, node string
	hidden      bool // the type does not exist for the node
	sub         gcp.Subscription
	delta       *deltaWatch
	sotw        *sotwWatch

	list  *list // nil once it has ended
	index int   // in the list
}

type deltaWatch struct {
	req *gcp.DeltaRequest
	out chan gcp.DeltaResponse
}

type sotwWatch struct {
	req *gcp.Request
	out chan gcp.Response
}

// withdrawUnsent removes the watch's response from the channel if the server has
// not sent it yet: the update came while the server was handling the request
// that ends the watch. The watch of that request would be compared with what
// the client had before this response, so that the changes of one of the two
// would be forgotten. An empty response has no changes, and the client may be
// waiting for it.
//
// The caller is the stream's goroutine, which is the channel's only receiver,
// and holds the shard's lock, so that no other response can be sent in between:
// the others keep their order, and there is room for them.
func (d *deltaWatch) withdrawUnsent() {
	for range len(d.out) {
		resp := <-d.out
		if r, ok := resp.(*deltaResponse); ok && r.req == d.req && !r.isEmpty() {
			continue
		}
		d.out <- resp
	}
}

// absent is the version in a stream's version map of a name that the client
// knows does not exist.
const absent = "-"

// CreateDeltaWatch implements the incremental protocol. A client that brings
// versions from an earlier stream is sent only what differs from them; a name
// that it subscribes to anew is sent even if it had it, as the protocol
// requires; a name that does not exist is answered as removed, once.
func (c *Cache) CreateDeltaWatch(req *gcp.DeltaRequest, sub gcp.Subscription, out chan gcp.DeltaResponse) (func(), error) {
	typ := req.GetTypeUrl()
	w := c.newWatch(req.GetNode(), typ, sub)
	w.delta = &deltaWatch{req, out}
	return c.addWatch(typ, w, func(s *groupSet) bool {
		ct := w.visible(s.content(typ))
		a := w.diff(ct, resubscribed(req))
		if a == nil {
			a = w.initialEmpty(ct)
		}
		return a != nil && trySend(out, gcp.DeltaResponse(&deltaResponse{req: req, sub: sub, deltaBody: a}))
	}), nil
}

// newWatch returns a watch of a node for one type, of neither protocol yet.
func (c *Cache) newWatch(n *corev3.Node, typ string, sub gcp.Subscription) *watch {
	return &watch{group: c.group(n), node: n.GetId(), hidden: typ == resources.SecretType && !c.secrets(n.GetId()), sub: sub}
}

// visible returns what the watch's node may see of a content of its type.
func (w *watch) visible(ct *content) *content {
	if w.hidden {
		return nil
	}
	return ct
}

// addWatch adds a watch and returns the function that ends it. If there is a
// set, answer may answer it at once.
func (c *Cache) addWatch(typ string, w *watch, answer func(*groupSet) bool) func() {
	s := c.shardOf(w.node)
	s.mu.Lock()
	defer s.mu.Unlock()
	ws := s.watchesOf(typ)
	if now := s.sets.get(w.group); now != nil && answer(now) {
		ws.answered.add(w)
	} else {
		ws.open.add(w)
	}
	return func() { c.cancelWatch(s, typ, w) }
}

// resubscribed returns the names that the request subscribes to without a
// version.
func resubscribed(req *gcp.DeltaRequest) map[string]bool {
	names := make(map[string]bool, len(req.GetResourceNamesSubscribe()))
	for _, name := range req.GetResourceNamesSubscribe() {
		if _, has := req.GetInitialResourceVersions()[name]; !has {
			names[name] = true
		}
	}
	return names
}

// diff compares a content with what the stream was sent. It returns nil if
// nothing differs.
func (w *watch) diff(ct *content, renewed map[string]bool) *deltaBody {
	var a deltaBody
	w.diffAll(&a, ct, renewed)
	if a.isEmpty() {
		return nil
	}
	a.complete(ct)
	return &a
}

// diffAll compares all resources that can matter to the subscription.
func (w *watch) diffAll(a *deltaBody, ct *content, renewed map[string]bool) {
	wildcard, named := w.sub.IsWildcard(), w.sub.SubscribedResources()
	if wildcard && ct != nil {
		for name := range ct.entries {
			w.diffResource(a, ct, name, renewed)
		}
	}
	for name := range named {
		if !wildcard || ct.get(name) == nil {
			w.diffResource(a, ct, name, renewed)
		}
	}
	if wildcard {
		for name := range w.sub.ReturnedResources() {
			if _, asked := named[name]; !asked && ct.get(name) == nil {
				w.diffResource(a, ct, name, renewed)
			}
		}
	}
	slices.SortFunc(a.entries, func(a, b *entry) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(a.removed)
}

// diffResource adds a resource to the body if the client has another state of
// it, or has to be sent it anew.
func (w *watch) diffResource(a *deltaBody, ct *content, name string, renewed map[string]bool) {
	_, asked := w.sub.SubscribedResources()[name]
	if !asked && !w.sub.IsWildcard() {
		return
	}
	e := ct.get(name)
	if e != nil && e.Unlisted && !asked {
		e = nil
	}
	have, had := w.sub.ReturnedResources()[name]
	switch {
	case e != nil && (have != e.Version || renewed[name]):
		a.entries = append(a.entries, e)
	case e == nil && had && have != absent, e == nil && asked && (!had || renewed[name]):
		a.removed = append(a.removed, name)
	}
}

// initialEmpty returns the empty response to a new wildcard subscription that
// lacks nothing, nil for other requests: a proxy that starts waits for such a
// response. Requests that only add or remove names do not ask for the wildcard.
// A follower of the plan, which comes back with what it has, learns by such a
// response that this control plane serves it.
func (w *watch) initialEmpty(ct *content) *deltaBody {
	req := w.delta.req
	follows := req.GetTypeUrl() == resources.RoutingType
	if req.GetResponseNonce() != "" || !w.sub.IsWildcard() && !follows {
		return nil
	}
	subscribe := req.GetResourceNamesSubscribe()
	if !follows && !slices.Contains(subscribe, "*") && len(subscribe)+len(req.GetResourceNamesUnsubscribe()) > 0 {
		return nil
	}
	return &deltaBody{version: ct.version()}
}

// CreateWatch implements the state-of-the-world protocol. A client that refuses
// a response waits until something that it subscribes to changes: it would
// refuse the same response again, as fast as the network allows.
func (c *Cache) CreateWatch(req *gcp.Request, sub gcp.Subscription, out chan gcp.Response) (func(), error) {
	typ := req.GetTypeUrl()
	w := c.newWatch(req.GetNode(), typ, sub)
	w.sotw = &sotwWatch{req, out}
	return c.addWatch(typ, w, func(s *groupSet) bool {
		resp := w.sotwResponse(w.visible(s.content(typ)))
		return resp != nil && trySend(out, gcp.Response(resp))
	}), nil
}

// listsAll reports whether responses of the type list everything, so that a
// resource that is missing does not exist. Responses of the other types hold
// what is new.
func listsAll(typ string) bool {
	return typ == resources.ClusterType || typ == resources.ListenerType
}

// subscribedEntries lists the entries that the subscription covers, sorted by
// name.
func subscribedEntries(ct *content, sub gcp.Subscription) []*entry {
	var all []*entry
	if ct == nil {
		return nil
	}
	if sub.IsWildcard() {
		for name, e := range ct.entries {
			if _, asked := sub.SubscribedResources()[name]; asked || !e.Unlisted {
				all = append(all, e)
			}
		}
	} else {
		for name := range sub.SubscribedResources() {
			if e := ct.entries[name]; e != nil {
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// sotwResponse returns what the client lacks, or nil if it lacks nothing.
func (w *watch) sotwResponse(ct *content) *sotwResponse {
	typ, returned := w.sotw.req.GetTypeUrl(), w.sub.ReturnedResources()
	all := subscribedEntries(ct, w.sub)
	next := make(map[string]string, len(all))
	var send []*entry
	for _, e := range all {
		next[e.Name] = e.Version
		if returned[e.Name] != e.Version {
			send = append(send, e)
		}
	}
	if listsAll(typ) {
		first := w.sotw.req.GetResponseNonce() == "" && len(returned) == 0
		if !first && maps.Equal(next, returned) {
			return nil
		}
		send = all
	} else if len(send) == 0 {
		return nil
	}
	rs := make([]*resources.Resource, len(all))
	for i, e := range all {
		rs[i] = e.Resource
	}
	return &sotwResponse{req: w.sotw.req, entries: send, next: next, version: Digest(rs)}
}

// respond answers an open watch with an update, and reports whether the update
// concerned it.
func (w *watch) respond(u *typeUpdate) bool {
	ct := w.visible(u.content)
	if w.sotw != nil {
		resp := w.sotwResponse(ct)
		return resp != nil && trySend(w.sotw.out, gcp.Response(resp))
	}
	body, a := &u.scratch, u.lastDelta
	body.entries, body.removed = body.entries[:0], body.removed[:0]
	if w.delta.req.GetResponseNonce() == "" {
		w.diffAll(body, ct, resubscribed(w.delta.req)) // it may have waited for the first set
	} else {
		for _, name := range u.changed {
			w.diffResource(body, ct, name, nil)
		}
	}
	switch {
	case body.isEmpty():
		if a = w.initialEmpty(ct); a == nil {
			return false
		}
	case !a.equal(body):
		a = &deltaBody{entries: slices.Clone(body.entries), removed: slices.Clone(body.removed)}
		a.complete(ct)
		u.lastDelta = a
	}
	return trySend(w.delta.out, gcp.DeltaResponse(&deltaResponse{req: w.delta.req, sub: w.sub, deltaBody: a}))
}

// trySend sends without blocking. The server's channels have room for one
// response per type; if one is full, the watch stays open until the next
// change.
func trySend[R any](out chan R, resp R) bool {
	select {
	case out <- resp:
		return true
	default:
		return false
	}
}

// Fetch implements gcp.ConfigFetcher. No service of package server polls.
func (c *Cache) Fetch(context.Context, *discoveryv3.DiscoveryRequest) (gcp.Response, error) {
	return nil, errors.ErrUnsupported
}
