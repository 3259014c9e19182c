// Package cache answers xDS streams from published sets of resources.
//
// It implements the cache of go-control-plane's server, in place of that
// library's snapshot cache. Set applies a set to a group of nodes; which set
// and when is decided by package publish.
//
// Invariants: a watch is answered at most once, with the difference between the
// set and what the stream was sent before; no set overtakes another; the cache
// never blocks on a client; no secret is sent to a node that may not have it,
// whatever protocol, stream or name it asks by.
//
// It differs from the snapshot cache in that every resource is encoded once and
// all nodes share its bytes; that the versions of resources are content hashes,
// so that a restarted server sends nothing again; that a SotW client which
// refuses a version is not sent the same one again; and that clients of both
// protocols, with wildcard subscriptions or by name, are served from one set.
package cache

import (
	"hash/maphash"
	"maps"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config is the configuration of a Cache.
type Config struct {
	// Group returns the group of a node. It must be pure. nil puts every node
	// into the group "".
	Group func(*corev3.Node) string
	// SecretsFor reports whether a node may have the secrets of its set. For every
	// other node no secret exists. It must always return the same for a node, and is
	// called for each watch of secrets. nil: no node may.
	SecretsFor func(node string) bool
}

// Cache holds one set per node group. It is safe for concurrent use.
type Cache struct {
	group   func(*corev3.Node) string
	secrets func(node string) bool
	shards  [shards]shard
	seed    maphash.Seed  // of the hash that assigns nodes to shards
	changed chan struct{} // capacity 1; see Changed

	setMu sync.Mutex // held during a change of the sets
	sets  groupSets  // guarded by setMu; replaced, not changed: the shards read it, too
}

var _ gcp.Cache = (*Cache)(nil)

// groupSet is the set of a group, ready to be sent.
type groupSet struct {
	set   resources.Set
	types map[string]*content
}

// groupSets holds the sets by group.
type groupSets map[string]*groupSet

// get returns the set that the nodes of a group get, or nil.
func (g groupSets) get(group string) *groupSet {
	if s, ok := g[group]; ok {
		return s
	}
	return g[""]
}

// New returns a cache without sets: requests wait for the first one.
func New(cfg Config) *Cache {
	group := cfg.Group
	if group == nil {
		group = func(*corev3.Node) string { return "" }
	}
	secrets := cfg.SecretsFor
	if secrets == nil {
		secrets = func(string) bool { return false }
	}
	c := &Cache{group: group, secrets: secrets, seed: maphash.MakeSeed(), sets: make(groupSets), changed: make(chan struct{}, 1)}
	for i := range c.shards {
		c.shards[i].types = make(map[string]*watches)
	}
	return c
}

// Unanswered adds to ids the nodes that have not replied to a response with one
// of the types, also if it is not sent yet. What such a node has is unknown,
// whatever it acknowledged before.
func (c *Cache) Unanswered(types []string, ids map[string]bool) {
	for i := range c.shards {
		c.shards[i].addUnanswered(types, ids)
	}
}

// Changed is signalled, at least once, after nodes have replied.
func (c *Cache) Changed() <-chan struct{} { return c.changed }

// Set applies a set to the nodes of a group, and with the group "" to all nodes
// whose group has no set of its own. Streams are sent what changed; an equal
// set sends nothing. The shards are updated one after another, so that clients
// of the others are served in the meantime.
func (c *Cache) Set(group string, set resources.Set) {
	c.setMu.Lock()
	defer c.setMu.Unlock()
	old := c.sets.get(group)
	now := prepareSet(set, old, c.sets[""])
	c.sets = maps.Clone(c.sets)
	c.sets[group] = now
	var updates []typeUpdate
	for _, typ := range typesOf(now, old) {
		ct := now.content(typ)
		// Watches that are older than the first set wait for any response.
		if changed := ct.changedNames(old.content(typ)); len(changed) > 0 || old == nil {
			updates = append(updates, typeUpdate{typ: typ, content: ct, changed: changed})
		}
	}
	for i := range c.shards {
		c.shards[i].update(c.sets, group, updates)
	}
}

func (s *groupSet) content(typ string) *content {
	if s == nil {
		return nil
	}
	return s.types[typ]
}
