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
	in *list // nil once it has ended
	at int   // where in the list
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
	return c.watch(typ, w, func(s *shown) bool {
		ct := s.content(typ)
		a := w.differs(ct, renewed(req))
		if a == nil {
			a = w.greeting(ct)
		}
		return a != nil && offer(out, gcp.DeltaResponse(&deltaResponse{req: req, sub: sub, answer: a}))
	}), nil
}

// watch files a watch and returns how to end it. If something is shown already,
// answer may answer it at once.
func (c *Cache) watch(typ string, w *watch, answer func(*shown) bool) func() {
	s := c.shardOf(w.node)
	s.mu.Lock()
	defer s.mu.Unlock()
	ws := s.of(typ)
	if now := s.groups.of(w.group); now != nil && answer(now) {
		ws.answered.add(w)
	} else {
		ws.open.add(w)
	}
	return func() { c.cancel(s, typ, w) }
}

// renewed are the names that the request subscribes to without saying which
// version it has.
func renewed(req *gcp.DeltaRequest) map[string]bool {
	names := make(map[string]bool, len(req.GetResourceNamesSubscribe()))
	for _, name := range req.GetResourceNamesSubscribe() {
		if _, has := req.GetInitialResourceVersions()[name]; !has {
			names[name] = true
		}
	}
	return names
}

// differs compares a content with what the stream was sent; nil means that
// nothing differs.
func (w *watch) differs(ct *content, renewed map[string]bool) *answer {
	var a answer
	w.compareAll(&a, ct, renewed)
	if a.empty() {
		return nil
	}
	a.seal(ct)
	return &a
}

// compareAll compares whatever can matter to the subscription.
func (w *watch) compareAll(a *answer, ct *content, renewed map[string]bool) {
	wildcard, named := w.sub.IsWildcard(), w.sub.SubscribedResources()
	if wildcard && ct != nil {
		for name := range ct.entries {
			w.compare(a, ct, name, renewed)
		}
	}
	for name := range named {
		if !wildcard || ct.get(name) == nil {
			w.compare(a, ct, name, renewed)
		}
	}
	if wildcard {
		for name := range w.sub.ReturnedResources() {
			if _, asked := named[name]; !asked && ct.get(name) == nil {
				w.compare(a, ct, name, renewed)
			}
		}
	}
	slices.SortFunc(a.send, func(a, b *entry) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(a.removed)
}

// compare adds a resource to an answer if the client has something else, or is
// to be sent it anew.
func (w *watch) compare(a *answer, ct *content, name string, renewed map[string]bool) {
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
		a.send = append(a.send, e)
	case e == nil && had && have != absent, e == nil && asked && (!had || renewed[name]):
		a.removed = append(a.removed, name)
	}
}

// greeting is the empty answer to a new wildcard subscription that misses
// nothing: a proxy that starts waits for one to know that there is no more.
// Requests that only add or drop names do not ask for the wildcard.
func (w *watch) greeting(ct *content) *answer {
	req := w.delta.req
	if req.GetResponseNonce() != "" || !w.sub.IsWildcard() {
		return nil
	}
	subscribe := req.GetResourceNamesSubscribe()
	if !slices.Contains(subscribe, "*") && len(subscribe)+len(req.GetResourceNamesUnsubscribe()) > 0 {
		return nil
	}
	return &answer{version: ct.version()}
}

// CreateWatch implements the state-of-the-world protocol. A client that
// refuses a response waits until something it asked for changes; sending it
// the same again would be refused again, as fast as the network allows.
func (c *Cache) CreateWatch(req *gcp.Request, sub gcp.Subscription, out chan gcp.Response) (func(), error) {
	typ := req.GetTypeUrl()
	w := &watch{group: c.group(req.GetNode()), node: req.GetNode().GetId(), sub: sub, sotw: &sotwWatch{req, out}}
	return c.watch(typ, w, func(s *shown) bool {
		resp := w.sotwResponse(s.content(typ))
		return resp != nil && offer(out, gcp.Response(resp))
	}), nil
}

// complete reports whether a response of the type lists everything, so that
// what is missing from it does not exist. Of the other types a response holds
// what is new.
func complete(typ string) bool {
	return typ == resources.ClusterType || typ == resources.ListenerType
}

// visible lists the entries that the subscription covers, sorted by name.
func visible(ct *content, sub gcp.Subscription) []*entry {
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
	all := visible(ct, w.sub)
	next := make(map[string]string, len(all))
	var send []*entry
	for _, e := range all {
		next[e.Name] = e.Version
		if returned[e.Name] != e.Version {
			send = append(send, e)
		}
	}
	if complete(typ) {
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
	return &sotwResponse{req: w.sotw.req, send: send, next: next, version: Digest(rs)}
}

// tell tells an open watch of news, and reports whether it concerned it.
func (w *watch) tell(n *news) bool {
	if w.sotw != nil {
		resp := w.sotwResponse(n.content)
		return resp != nil && offer(w.sotw.out, gcp.Response(resp))
	}
	fresh, a := &n.scratch, n.last
	fresh.send, fresh.removed = fresh.send[:0], fresh.removed[:0]
	if w.delta.req.GetResponseNonce() == "" {
		w.compareAll(fresh, n.content, nil) // it may have waited for the first set
	} else {
		for _, name := range n.changed {
			w.compare(fresh, n.content, name, nil)
		}
	}
	switch {
	case fresh.empty():
		if a = w.greeting(n.content); a == nil {
			return false
		}
	case !a.equal(fresh):
		a = &answer{send: slices.Clone(fresh.send), removed: slices.Clone(fresh.removed)}
		a.seal(n.content)
		n.last = a
	}
	return offer(w.delta.out, gcp.DeltaResponse(&deltaResponse{req: w.delta.req, sub: w.sub, answer: a}))
}

// offer sends without waiting. The server's channels have room for an answer
// per type; should one be full, the watch stays and the next change tells.
func offer[R any](out chan R, resp R) bool {
	select {
	case out <- resp:
		return true
	default:
		return false
	}
}

// Fetch implements the REST protocol.
func (c *Cache) Fetch(_ context.Context, req *discoveryv3.DiscoveryRequest) (gcp.Response, error) {
	c.setting.Lock()
	s := c.groups.of(c.group(req.GetNode()))
	c.setting.Unlock()
	w := &watch{sub: named(req.GetResourceNames()), sotw: &sotwWatch{req: req}}
	resp := w.sotwResponse(s.content(req.GetTypeUrl()))
	if resp == nil {
		resp = &sotwResponse{req: req, version: Digest(nil)}
	}
	if req.GetVersionInfo() == resp.version {
		return nil, &types.SkipFetchError{}
	}
	return resp, nil
}

// named is the subscription of a request that has no stream.
type named []string

func (n named) ReturnedResources() map[string]string { return nil }
func (n named) IsWildcard() bool                     { return len(n) == 0 }
func (n named) SubscribedResources() map[string]struct{} {
	set := make(map[string]struct{}, len(n))
	for _, name := range n {
		set[name] = struct{}{}
	}
	return set
}
