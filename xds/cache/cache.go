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
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"

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

	setMu   sync.Mutex    // one change of the sets at a time
	sets    groupSets     // guarded by setting; every shard has its own
	running bool          // guarded by setting
	pending chan struct{} // capacity 1: Run has streams to tell
}

var _ gcp.Cache = (*Cache)(nil)

// groupSet is what a group of nodes is shown.
type groupSet struct {
	set   resources.Set
	types map[string]*content
}

// groupSets is what each group is shown.
type groupSets map[string]*groupSet

// get returns what a group is shown, or nil.
func (g groupSets) get(group string) *groupSet {
	if s, ok := g[group]; ok {
		return s
	}
	return g[""]
}

// New returns a cache that shows nothing: requests wait for the first set.
func New(cfg Config) *Cache {
	group := cfg.Group
	if group == nil {
		group = func(*corev3.Node) string { return "" }
	}
	c := &Cache{group: group, seed: maphash.MakeSeed(), sets: make(groupSets), changed: make(chan struct{}, 1), pending: make(chan struct{}, 1)}
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
		c.shards[i].addUnanswered(types, ids)
	}
}

// Changed is signalled, at least once, after Unanswered has become less.
func (c *Cache) Changed() <-chan struct{} { return c.changed }

// Set shows a set to the nodes of a group, and with the group "" to all nodes
// whose group has no set of its own. Streams are told what changed; an equal
// set tells them nothing. While Run runs, they are told by it.
func (c *Cache) Set(group string, set resources.Set) {
	c.setMu.Lock()
	defer c.setMu.Unlock()
	old := c.sets.get(group)
	now := prepareSet(set, old, c.sets[""])
	c.sets[group] = now
	c.distribute(group, old, now)
}

// Drop takes a group's own set away; its nodes are shown the set of the group
// "" again.
func (c *Cache) Drop(group string) {
	c.setMu.Lock()
	defer c.setMu.Unlock()
	old, common := c.sets[group], c.sets[""]
	if group == "" || old == nil {
		return
	}
	delete(c.sets, group)
	c.distribute(group, old, common)
}

// Run tells the streams what Set and Drop change, so that those return at once
// however many there are. Where it does not run, they tell the streams
// themselves.
func (c *Cache) Run(ctx context.Context) error {
	c.setMu.Lock()
	c.running = true
	c.setMu.Unlock()
	for {
		select {
		case <-c.pending:
			c.flush()
			c.signalChanged() // of those on the way, some are not concerned
		case <-ctx.Done():
			c.setMu.Lock()
			defer c.setMu.Unlock()
			c.running = false
			c.flush()
			c.signalChanged()
			return nil
		}
	}
}

// distribute has every shard tell its nodes what differs between old, which is what
// they were shown before, or nil, and now. The shards are locked one after
// another, so that clients of the others are served meanwhile.
func (c *Cache) distribute(group string, old, now *groupSet) {
	o := &update{group: group}
	for _, typ := range typesOf(now, old) {
		ct := now.content(typ)
		// Who asked before there was a set waits for an answer of any kind.
		if changed := ct.changedNames(old.content(typ)); len(changed) > 0 || old == nil {
			o.types = append(o.types, typeUpdate{typ: typ, content: ct, changed: changed})
		}
	}
	for i := range c.shards {
		c.shards[i].setGroup(group, c.sets[group], o)
	}
	if !c.running {
		c.flush()
		return
	}
	select {
	case c.pending <- struct{}{}:
	default:
	}
}

// flush tells the streams what they have not been told.
func (c *Cache) flush() {
	for i := range c.shards {
		c.shards[i].flush()
	}
}

func (c *Cache) signalChanged() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (s *groupSet) content(typ string) *content {
	if s == nil {
		return nil
	}
	return s.types[typ]
}
