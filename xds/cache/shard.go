package cache

import (
	"hash/maphash"
	"sync"

	"github.com/cascadeinfer/cascade/internal/wakeup"
)

// shards is the number of parts that the nodes are divided into. They are
// updated one after another, so that a client waits for one of them at most.
const shards = 16

// shard is a part of the nodes with all their watches.
type shard struct {
	mu    sync.Mutex
	sets  groupSets
	types map[string]*watches
}

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

// update makes the sets those of the shard, and answers the watches that the
// updates of a group concern.
func (s *shard) update(sets groupSets, group string, updates []typeUpdate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sets = sets
	for i := range updates {
		s.respondAll(group, &updates[i])
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
		wakeup.Send(c.changed)
	}
}
