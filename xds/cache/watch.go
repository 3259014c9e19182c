package cache

import (
	"cmp"
	"context"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// watch is a client that waits for news of one type. Exactly one of delta and
// sotw is set.
type watch struct {
	group, node string
	sub         gcp.Subscription
	delta       *deltaWatch
	sotw        *sotwWatch

	// Guarded by the shard's mu.
	list  *list // nil once it has ended
	index int   // where in the list
}

type deltaWatch struct {
	req *gcp.DeltaRequest
	out chan gcp.DeltaResponse
}

type sotwWatch struct {
	req *gcp.Request
	out chan gcp.Response
}

// absent stands in a stream's version map for a name that the client was told
// does not exist.
const absent = "-"

// CreateDeltaWatch implements the incremental protocol. A client that brings
// versions from an earlier stream is sent only what differs from them; a name
// that it subscribes to anew is sent even if it had it, as the protocol asks;
// a name that does not exist is answered as removed, once.
func (c *Cache) CreateDeltaWatch(req *gcp.DeltaRequest, sub gcp.Subscription, out chan gcp.DeltaResponse) (func(), error) {
	typ := req.GetTypeUrl()
	w := &watch{group: c.group(req.GetNode()), node: req.GetNode().GetId(), sub: sub, delta: &deltaWatch{req, out}}
	return c.addWatch(typ, w, func(s *groupSet) bool {
		ct := s.content(typ)
		a := w.diff(ct, resubscribed(req))
		if a == nil {
			a = w.initialEmpty(ct)
		}
		return a != nil && trySend(out, gcp.DeltaResponse(&deltaResponse{req: req, sub: sub, deltaBody: a}))
	}), nil
}

// addWatch files a watch and returns how to end it. If something is shown already,
// answer may answer it at once.
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

// resubscribed are the names that the request subscribes to without saying which
// version it has.
func resubscribed(req *gcp.DeltaRequest) map[string]bool {
	names := make(map[string]bool, len(req.GetResourceNamesSubscribe()))
	for _, name := range req.GetResourceNamesSubscribe() {
		if _, has := req.GetInitialResourceVersions()[name]; !has {
			names[name] = true
		}
	}
	return names
}

// diff compares a content with what the stream was sent; nil means that
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

// diffAll compares whatever can matter to the subscription.
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

// diffResource adds a resource to an answer if the client has something else, or is
// to be sent it anew.
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

// initialEmpty is the empty answer to a new wildcard subscription that misses
// nothing: a proxy that starts waits for one to know that there is no more.
// Requests that only add or drop names do not ask for the wildcard.
func (w *watch) initialEmpty(ct *content) *deltaBody {
	req := w.delta.req
	if req.GetResponseNonce() != "" || !w.sub.IsWildcard() {
		return nil
	}
	subscribe := req.GetResourceNamesSubscribe()
	if !slices.Contains(subscribe, "*") && len(subscribe)+len(req.GetResourceNamesUnsubscribe()) > 0 {
		return nil
	}
	return &deltaBody{version: ct.version()}
}

// CreateWatch implements the state-of-the-world protocol. A client that
// refuses a response waits until something it asked for changes; sending it
// the same again would be refused again, as fast as the network allows.
func (c *Cache) CreateWatch(req *gcp.Request, sub gcp.Subscription, out chan gcp.Response) (func(), error) {
	typ := req.GetTypeUrl()
	w := &watch{group: c.group(req.GetNode()), node: req.GetNode().GetId(), sub: sub, sotw: &sotwWatch{req, out}}
	return c.addWatch(typ, w, func(s *groupSet) bool {
		resp := w.sotwResponse(s.content(typ))
		return resp != nil && trySend(out, gcp.Response(resp))
	}), nil
}

// listsAll reports whether a response of the type lists everything, so that
// what is missing from it does not exist. Of the other types a response holds
// what is new.
func listsAll(typ string) bool {
	return typ == resources.ClusterType || typ == resources.ListenerType
}

// subscribedEntries lists the entries that the subscription covers, sorted by name.
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

// sotwResponse returns what a client is to be sent, or nil if it has it.
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

// respond tells an open watch of news, and reports whether it concerned it.
func (w *watch) respond(n *typeUpdate) bool {
	if w.sotw != nil {
		resp := w.sotwResponse(n.content)
		return resp != nil && trySend(w.sotw.out, gcp.Response(resp))
	}
	fresh, a := &n.scratch, n.lastDelta
	fresh.entries, fresh.removed = fresh.entries[:0], fresh.removed[:0]
	if w.delta.req.GetResponseNonce() == "" {
		w.diffAll(fresh, n.content, nil) // it may have waited for the first set
	} else {
		for _, name := range n.changed {
			w.diffResource(fresh, n.content, name, nil)
		}
	}
	switch {
	case fresh.isEmpty():
		if a = w.initialEmpty(n.content); a == nil {
			return false
		}
	case !a.equal(fresh):
		a = &deltaBody{entries: slices.Clone(fresh.entries), removed: slices.Clone(fresh.removed)}
		a.complete(n.content)
		n.lastDelta = a
	}
	return trySend(w.delta.out, gcp.DeltaResponse(&deltaResponse{req: w.delta.req, sub: w.sub, deltaBody: a}))
}

// trySend sends without waiting. The server's channels have room for an answer
// per type; should one be full, the watch stays and the next change tells.
func trySend[R any](out chan R, resp R) bool {
	select {
	case out <- resp:
		return true
	default:
		return false
	}
}

// Fetch implements the REST protocol.
func (c *Cache) Fetch(_ context.Context, req *discoveryv3.DiscoveryRequest) (gcp.Response, error) {
	c.setMu.Lock()
	s := c.sets.get(c.group(req.GetNode()))
	c.setMu.Unlock()
	w := &watch{sub: namedSubscription(req.GetResourceNames()), sotw: &sotwWatch{req: req}}
	resp := w.sotwResponse(s.content(req.GetTypeUrl()))
	if resp == nil {
		resp = &sotwResponse{req: req, version: Digest(nil)}
	}
	if req.GetVersionInfo() == resp.version {
		return nil, &types.SkipFetchError{}
	}
	return resp, nil
}

// namedSubscription is the subscription of a request that has no stream.
type namedSubscription []string

func (n namedSubscription) ReturnedResources() map[string]string { return nil }
func (n namedSubscription) IsWildcard() bool                     { return len(n) == 0 }
func (n namedSubscription) SubscribedResources() map[string]struct{} {
	set := make(map[string]struct{}, len(n))
	for _, name := range n {
		set[name] = struct{}{}
	}
	return set
}
