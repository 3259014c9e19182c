package cache

import (
	"hash/maphash"
	"slices"
	"sync"
)

// shards is the number of parts that the nodes are divided into. They are
// updated one after another, so that a client waits for one of them at most.
const shards = 16

// shard is a part of the nodes with all their watches.
type shard struct {
	mu      sync.Mutex
	sets    groupSets
	types   map[string]*watches
	pending *update // not sent to the open watches yet; nil: none
}

func (s *shard) init() { s.sets, s.types = make(groupSets), make(map[string]*watches) }

// shardOf returns the shard of a node. All streams of the node are in it, and
// so are updated in order.
func (c *Cache) shardOf(node string) *shard {
	return &c.shards[maphash.String(c.seed, node)%shards]
}

// watches holds the watches of one type.
type watches struct {
	open     list // wait for a change
	answered list // were answered; the client has not replied yet
}

func (s *shard) watchesOf(typ string) *watches {
	ws := s.types[typ]
	if ws == nil {
		ws = new(watches)
		s.types[typ] = ws
	}
	return ws
}

// list is a set of watches. The zero value is empty.
type list struct{ all []*watch }

func (l *list) add(w *watch) {
	w.list, w.index = l, len(l.all)
	l.all = append(l.all, w)
}

// remove removes the watch from its list.
func (w *watch) remove() {
	l := w.list
	last := len(l.all) - 1
	l.all[w.index] = l.all[last]
	l.all[w.index].index = w.index
	l.all[last] = nil
	l.all = l.all[:last]
	w.list = nil
}

// typeUpdate is the part of an update about one type.
type typeUpdate struct {
	typ       string
	content   *content
	changed   []string   // names, sorted
	lastDelta *deltaBody // sent last; most clients get the same one
	scratch   deltaBody  // of the watch in progress
}

// update is what changed for a group, or for all groups without a set of their
// own. All shards share it.
type update struct {
	group string

	mu    sync.Mutex
	types []typeUpdate
}

// setGroup gives a group its own set, or removes that if it is nil, and makes u
// pending. An earlier pending update is sent first, because its changes are not
// in u.
func (s *shard) setGroup(group string, own *groupSet, u *update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
	if own != nil {
		s.sets[group] = own
	} else {
		delete(s.sets, group)
	}
	if len(u.types) > 0 {
		s.pending = u
	}
}

// flush sends the pending update to the open watches.
func (s *shard) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
}

func (s *shard) flushLocked() {
	u := s.pending
	if s.pending = nil; u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.types {
		s.respondAll(u.group, &u.types[i])
	}
}

// respondAll answers the open watches that an update of one type concerns.
func (s *shard) respondAll(group string, u *typeUpdate) {
	ws := s.types[u.typ]
	if ws == nil {
		return
	}
	for i := 0; i < len(ws.open.all); {
		w := ws.open.all[i]
		if s.usesSetOf(w.group, group) && w.respond(u) {
			w.remove() // this moves the last watch to index i
			ws.answered.add(w)
		} else {
			i++
		}
	}
}

// usesSetOf reports whether the nodes of a group get the set of another group.
func (s *shard) usesSetOf(group, as string) bool {
	if group == as {
		return true
	}
	_, own := s.sets[group]
	return as == "" && !own
}

func (s *shard) addUnanswered(types []string, ids map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, typ := range types {
		if ws := s.types[typ]; ws != nil {
			for _, w := range ws.answered.all {
				ids[w.node] = true
			}
		}
	}
	if s.pending == nil {
		return
	}
	for i := range s.pending.types {
		typ := s.pending.types[i].typ // the other fields are guarded by the update's mu
		if ws := s.types[typ]; ws != nil && slices.Contains(types, typ) {
			for _, w := range ws.open.all {
				if s.usesSetOf(w.group, s.pending.group) {
					ids[w.node] = true // even if the update turns out not to concern it
				}
			}
		}
	}
}

// cancelWatch ends a watch. The server calls it on the stream's goroutine, when
// a request comes and when the stream ends. Afterwards nothing is sent on the
// watch's channel, which the server may close.
func (c *Cache) cancelWatch(s *shard, typ string, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.list == nil {
		return
	}
	answered := w.list == &s.types[typ].answered
	w.remove()
	if answered {
		if w.delta != nil {
			w.delta.withdrawUnsent()
		}
		c.signalChanged()
	}
}
