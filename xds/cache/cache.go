// Package cache answers xDS streams out of published sets of resources.
//
// It implements the cache of go-control-plane's server, in place of that
// library's snapshot cache: every resource is encoded once and its bytes are
// shared by all nodes; what a client holds is told by content hashes, so that
// a restarted server sends nothing again; a SotW client that refuses a
// version is not sent the same one again; and clients of both protocols, with
// wildcard subscriptions or by name, are served from one set. It decides
// nothing about when a set is shown: package publish does.
//
// Invariants: a watch is answered at most once, with what differs between the
// set and what the stream was sent before; no set overtakes another; the cache
// never blocks on a client.
package cache

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config is the configuration of a Cache.
type Config struct {
	// Group names the group of a node; sets are shown to groups. It must be
	// pure. nil puts every node into the group "".
	Group func(*corev3.Node) string
}

// Cache holds one set per node group. It is safe for concurrent use.
type Cache struct {
	group   func(*corev3.Node) string
	shards  [shards]shard
	seed    maphash.Seed  // of the shards
	changed chan struct{} // capacity 1; see Changed

	setting sync.Mutex    // one change of the sets at a time
	groups  shownTo       // guarded by setting; every shard has its own
	running bool          // guarded by setting
	untold  chan struct{} // capacity 1: Run has streams to tell
}

var _ gcp.Cache = (*Cache)(nil)

// shown is what a group of nodes is shown.
type shown struct {
	set   resources.Set
	types map[string]*content
}

// shownTo is what each group is shown.
type shownTo map[string]*shown

// of returns what a group is shown, or nil.
func (g shownTo) of(group string) *shown {
	if s, ok := g[group]; ok {
		return s
	}
	return g[""]
}

// content is one type of a set, ready to be sent. It is immutable.
type content struct {
	entries map[string]*entry
	digest  string // of all of them
}

// entry is one resource in the forms in which the protocols send it. All
// nodes share it.
type entry struct {
	*resources.Resource
	any   *anypb.Any
	delta *discoveryv3.Resource
}

// byUse is the order in which the types of one set are sent: what is named
// before what names it.
var byUse = []string{
	resources.SecretType, resources.ClusterType, resources.EndpointType, resources.ListenerType, resources.RouteType, resources.ExtensionType,
}

// New returns a cache that shows nothing: requests wait for the first set.
func New(cfg Config) *Cache {
	group := cfg.Group
	if group == nil {
		group = func(*corev3.Node) string { return "" }
	}
	c := &Cache{group: group, seed: maphash.MakeSeed(), groups: make(shownTo), changed: make(chan struct{}, 1), untold: make(chan struct{}, 1)}
	for i := range c.shards {
		c.shards[i].init()
	}
	return c
}

// Unanswered adds the ids of the nodes to ids that have been told something of
// the given types, or are about to be, and have not replied to it. What such a
// node has is uncertain, whatever it acknowledged before.
func (c *Cache) Unanswered(types []string, ids map[string]bool) {
	for i := range c.shards {
		c.shards[i].unanswered(types, ids)
	}
}

// Changed is signalled, at least once, after Unanswered has become less.
func (c *Cache) Changed() <-chan struct{} { return c.changed }

// Set shows a set to the nodes of a group, and with the group "" to all nodes
// whose group has no set of its own. Streams are told what changed; an equal
// set tells them nothing. While Run runs, they are told by it.
func (c *Cache) Set(group string, set resources.Set) {
	c.setting.Lock()
	defer c.setting.Unlock()
	old := c.groups.of(group)
	now := prepare(set, old, c.groups[""])
	c.groups[group] = now
	c.tell(group, old, now)
}

// Drop takes a group's own set away; its nodes are shown the set of the group
// "" again.
func (c *Cache) Drop(group string) {
	c.setting.Lock()
	defer c.setting.Unlock()
	old, common := c.groups[group], c.groups[""]
	if group == "" || old == nil {
		return
	}
	delete(c.groups, group)
	c.tell(group, old, common)
}

// Run tells the streams what Set and Drop change, so that those return at once
// however many there are. Where it does not run, they tell the streams
// themselves.
func (c *Cache) Run(ctx context.Context) error {
	c.setting.Lock()
	c.running = true
	c.setting.Unlock()
	for {
		select {
		case <-c.untold:
			c.catchUp()
			c.signal() // of those on the way, some are not concerned
		case <-ctx.Done():
			c.setting.Lock()
			defer c.setting.Unlock()
			c.running = false
			c.catchUp()
			c.signal()
			return nil
		}
	}
}

// tell has every shard tell its nodes what differs between old, which is what
// they were shown before, or nil, and now. The shards are locked one after
// another, so that clients of the others are served meanwhile.
func (c *Cache) tell(group string, old, now *shown) {
	o := &bulletin{group: group}
	for _, typ := range typesOf(now, old) {
		ct := now.content(typ)
		// Who asked before there was a set waits for an answer of any kind.
		if changed := ct.changed(old.content(typ)); len(changed) > 0 || old == nil {
			o.news = append(o.news, news{typ: typ, content: ct, changed: changed})
		}
	}
	for i := range c.shards {
		c.shards[i].show(group, c.groups[group], o)
	}
	if !c.running {
		c.catchUp()
		return
	}
	select {
	case c.untold <- struct{}{}:
	default:
	}
}

// catchUp tells the streams what they have not been told.
func (c *Cache) catchUp() {
	for i := range c.shards {
		c.shards[i].catchUp()
	}
}

func (c *Cache) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// prepare makes a set ready to be sent, sharing what the sets before it hold.
func prepare(set resources.Set, before ...*shown) *shown {
	s := &shown{set: set, types: make(map[string]*content)}
	for _, typ := range set.Types() {
		s.types[typ] = contentOf(set, typ, before)
	}
	return s
}

// contentOf makes one type of a set ready.
func contentOf(set resources.Set, typ string, before []*shown) *content {
	for _, b := range before {
		if ct := b.content(typ); ct != nil && ct.holds(set, typ) {
			return ct
		}
	}
	all := set.All(typ)
	ct := &content{entries: make(map[string]*entry, len(all)), digest: Digest(all)}
	for _, r := range all {
		for _, b := range before {
			if e := b.content(typ).get(r.Name); e.is(r) {
				ct.entries[r.Name] = e
				break
			}
		}
		if ct.entries[r.Name] == nil {
			a := &anypb.Any{TypeUrl: r.Type, Value: r.Body}
			ct.entries[r.Name] = &entry{
				Resource: r, any: a,
				delta: &discoveryv3.Resource{Name: r.Name, Version: r.Version, Resource: a},
			}
		}
	}
	return ct
}

// is reports whether the entry, which may be nil, is of this resource.
func (e *entry) is(r *resources.Resource) bool {
	return e != nil && r != nil && e.Version == r.Version && e.Unlisted == r.Unlisted
}

// holds reports whether a content is that of a type of a set.
func (ct *content) holds(set resources.Set, typ string) bool {
	if set.Len(typ) != len(ct.entries) {
		return false
	}
	for name, e := range ct.entries {
		if !e.is(set.Get(typ, name)) {
			return false
		}
	}
	return true
}

func (s *shown) content(typ string) *content {
	if s == nil {
		return nil
	}
	return s.types[typ]
}

func (ct *content) get(name string) *entry {
	if ct == nil {
		return nil
	}
	return ct.entries[name]
}

// version is the digest; "" for a type that the set does not hold.
func (ct *content) version() string {
	if ct == nil {
		return ""
	}
	return ct.digest
}

// changed lists the names that differ between two contents, sorted.
func (ct *content) changed(old *content) []string {
	if ct == old {
		return nil
	}
	var names []string
	if ct != nil {
		for name, e := range ct.entries {
			if old.get(name) != e {
				names = append(names, name)
			}
		}
	}
	if old != nil {
		for name := range old.entries {
			if ct.get(name) == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// typesOf lists the types of two sets, and all that are known where there was
// none before, in the order of sending.
func typesOf(now, old *shown) []string {
	all := make(map[string]bool)
	for _, s := range [...]*shown{now, old} {
		if s != nil {
			for typ := range s.types {
				all[typ] = true
			}
		}
	}
	types := make([]string, 0, len(all)+len(byUse))
	for _, typ := range byUse {
		if all[typ] || old == nil {
			types = append(types, typ)
			delete(all, typ)
		}
	}
	return append(types, slices.Sorted(maps.Keys(all))...)
}
