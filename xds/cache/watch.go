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
	w := &watch{group: c.group(req.GetNode()), node: req.GetNode().GetId(), sub: sub, delta: &deltaWatch{req, out}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.shownLocked(w.group); s != nil {
		ct := s.content(req.GetTypeUrl())
		resp := w.deltaResponse(ct, everything(ct, sub), renewed(req))
		if resp == nil {
			resp = w.greeting(ct)
		}
		if resp != nil && offer(out, gcp.DeltaResponse(resp)) {
			return c.keepLocked(c.answered, req.GetTypeUrl(), w), nil
		}
	}
	return c.keepLocked(c.watches, req.GetTypeUrl(), w), nil
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

// everything lists the names that can matter to a subscription.
func everything(ct *content, sub gcp.Subscription) []string {
	names := make(map[string]struct{}, len(sub.SubscribedResources()))
	maps.Copy(names, sub.SubscribedResources())
	if sub.IsWildcard() {
		for name := range sub.ReturnedResources() {
			names[name] = struct{}{}
		}
		if ct != nil {
			for name := range ct.entries {
				names[name] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// deltaResponse compares the candidates with what the stream was sent; nil
// means that nothing differs.
func (w *watch) deltaResponse(ct *content, candidates []string, renewed map[string]bool) *deltaResponse {
	returned, named := w.sub.ReturnedResources(), w.sub.SubscribedResources()
	var send []*entry
	var removed []string
	for _, name := range candidates {
		_, asked := named[name]
		if !asked && !w.sub.IsWildcard() {
			continue
		}
		e := ct.get(name)
		if e != nil && e.Unlisted && !asked {
			e = nil
		}
		have, had := returned[name]
		switch {
		case e != nil && (have != e.Version || renewed[name]):
			send = append(send, e)
		case e == nil && had && have != absent, e == nil && asked && (!had || renewed[name]):
			removed = append(removed, name)
		}
	}
	if len(send) == 0 && len(removed) == 0 {
		return nil
	}
	return &deltaResponse{req: w.delta.req, sub: w.sub, send: send, removed: removed, version: ct.version()}
}

// first reports whether the client has not been answered yet.
func (w *watch) first() bool { return w.delta.req.GetResponseNonce() == "" }

// greeting is the empty answer to a new wildcard subscription that misses
// nothing: a proxy that starts waits for one to know that there is no more.
func (w *watch) greeting(ct *content) *deltaResponse {
	if !w.first() || !w.sub.IsWildcard() {
		return nil
	}
	return &deltaResponse{req: w.delta.req, sub: w.sub, version: ct.version()}
}

// CreateWatch implements the state-of-the-world protocol. A client that
// refuses a response waits until something it asked for changes; sending it
// the same again would be refused again, as fast as the network allows.
func (c *Cache) CreateWatch(req *gcp.Request, sub gcp.Subscription, out chan gcp.Response) (func(), error) {
	w := &watch{group: c.group(req.GetNode()), node: req.GetNode().GetId(), sub: sub, sotw: &sotwWatch{req, out}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.shownLocked(w.group); s != nil {
		if resp := w.sotwResponse(s.content(req.GetTypeUrl())); resp != nil && offer(out, gcp.Response(resp)) {
			return c.keepLocked(c.answered, req.GetTypeUrl(), w), nil
		}
	}
	return c.keepLocked(c.watches, req.GetTypeUrl(), w), nil
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

// answerLocked tells an open watch of a change, if it concerns it.
func (c *Cache) answerLocked(w *watch, s *shown, changed []string) {
	var typ string
	sent := false
	if w.delta != nil {
		typ = w.delta.req.GetTypeUrl()
		ct := s.content(typ)
		if w.first() {
			changed = everything(ct, w.sub) // it may have waited for the first set
		}
		resp := w.deltaResponse(ct, changed, nil)
		if resp == nil {
			resp = w.greeting(ct)
		}
		sent = resp != nil && offer(w.delta.out, gcp.DeltaResponse(resp))
	} else {
		typ = w.sotw.req.GetTypeUrl()
		resp := w.sotwResponse(s.content(typ))
		sent = resp != nil && offer(w.sotw.out, gcp.Response(resp))
	}
	if sent {
		remove(c.watches, typ, w)
		add(c.answered, typ, w)
	}
}

// keepLocked files a watch and returns how to end it: the server does so when
// the client replies, and when the stream ends. After that nothing is sent on
// its channel, which the server may close.
func (c *Cache) keepLocked(in map[string]map[*watch]struct{}, typ string, w *watch) func() {
	add(in, typ, w)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		remove(c.watches, typ, w)
		if remove(c.answered, typ, w) {
			select {
			case c.changed <- struct{}{}:
			default:
			}
		}
	}
}

func add(to map[string]map[*watch]struct{}, typ string, w *watch) {
	if to[typ] == nil {
		to[typ] = make(map[*watch]struct{})
	}
	to[typ][w] = struct{}{}
}

// remove reports whether the watch was there.
func remove(from map[string]map[*watch]struct{}, typ string, w *watch) bool {
	_, ok := from[typ][w]
	delete(from[typ], w)
	if len(from[typ]) == 0 {
		delete(from, typ)
	}
	return ok
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
	c.mu.Lock()
	s := c.shownLocked(c.group(req.GetNode()))
	c.mu.Unlock()
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
