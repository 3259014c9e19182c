package cache

import (
	"hash/maphash"
	"slices"
	"sync"
)

// shards is how many parts the nodes are in. A change is told to one after
// another, so that clients wait for a part of it at most.
const shards = 16

// shard is a part of the nodes, with all their watches.
type shard struct {
	mu      sync.Mutex
	sets    groupSets
	types   map[string]*watches
	pending *update // that the open watches have not been told; nil: none
}

func (s *shard) init() { s.sets, s.types = make(groupSets), make(map[string]*watches) }

// shardOf finds a node's shard: all its streams are told in order.
func (c *Cache) shardOf(node string) *shard {
	return &c.shards[maphash.String(c.seed, node)%shards]
}

// watches are those of one type.
type watches struct {
	open     list // wait for news
	answered list // were told something that their client has not replied to
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

// remove takes the watch out of the list that it is in.
func (w *watch) remove() {
	l := w.list
	last := len(l.all) - 1
	l.all[w.index] = l.all[last]
	l.all[w.index].index = w.index
	l.all[last] = nil
	l.all = l.all[:last]
	w.list = nil
}

// typeUpdate is what changed of one type.
type typeUpdate struct {
	typ       string
	content   *content
	changed   []string   // names, sorted
	lastDelta *deltaBody // told last; most clients are told the same
	scratch   deltaBody  // of the one being told
}

// update is what changed for a group, or for all groups without a set of
// their own. The shards share it.
type update struct {
	group string

	mu    sync.Mutex
	types []typeUpdate
}

// setGroup shows a group the set of its own, or none if there is none, and leaves
// the bulletin about it to be told. One before it is told first: who has not
// been told of the set before would not miss what that changed.
func (s *shard) setGroup(group string, own *groupSet, b *update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
	if own != nil {
		s.sets[group] = own
	} else {
		delete(s.sets, group)
	}
	if len(b.types) > 0 {
		s.pending = b
	}
}

// flush tells the open watches what they have not been told.
func (s *shard) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
}

func (s *shard) flushLocked() {
	b := s.pending
	if s.pending = nil; b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.types {
		s.respondAll(b.group, &b.types[i])
	}
}

func (s *shard) respondAll(group string, n *typeUpdate) {
	ws := s.types[n.typ]
	if ws == nil {
		return
	}
	for i := 0; i < len(ws.open.all); {
		w := ws.open.all[i]
		if s.usesSetOf(w.group, group) && w.respond(n) {
			w.remove() // which puts another one in its place
			ws.answered.add(w)
		} else {
			i++
		}
	}
}

// usesSetOf reports whether the nodes of one group are shown the set of another.
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
		typ := s.pending.types[i].typ // the rest belongs to who tells
		if ws := s.types[typ]; ws != nil && slices.Contains(types, typ) {
			for _, w := range ws.open.all {
				if s.usesSetOf(w.group, s.pending.group) {
					ids[w.node] = true // or not, if it does not concern it
				}
			}
		}
	}
}

// cancelWatch ends a watch: the server does so when the client replies, and when
// the stream ends. After that nothing is sent on its channel, which the server
// may close.
func (c *Cache) cancelWatch(s *shard, typ string, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.list == nil {
		return
	}
	answered := w.list == &s.types[typ].answered
	w.remove()
	if answered {
		c.signalChanged()
	}
}
