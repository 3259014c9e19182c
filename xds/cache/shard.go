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
	mu     sync.Mutex
	groups shownTo
	types  map[string]*watches
	untold *bulletin // that the open watches have not been told; nil: none
}

func (s *shard) init() { s.groups, s.types = make(shownTo), make(map[string]*watches) }

// shardOf finds a node's shard: all its streams are told in order.
func (c *Cache) shardOf(node string) *shard {
	return &c.shards[maphash.String(c.seed, node)%shards]
}

// watches are those of one type.
type watches struct {
	open     list // wait for news
	answered list // were told something that their client has not replied to
}

func (s *shard) of(typ string) *watches {
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
	w.in, w.at = l, len(l.all)
	l.all = append(l.all, w)
}

// remove takes the watch out of the list that it is in.
func (w *watch) remove() {
	l := w.in
	last := len(l.all) - 1
	l.all[w.at] = l.all[last]
	l.all[w.at].at = w.at
	l.all[last] = nil
	l.all = l.all[:last]
	w.in = nil
}

// news is what changed of one type.
type news struct {
	typ     string
	content *content
	changed []string // names, sorted
	last    *answer  // told last; most clients are told the same
	scratch answer   // of the one being told
}

// bulletin is what changed for a group, or for all groups without a set of
// their own. The shards share it.
type bulletin struct {
	group string

	mu   sync.Mutex
	news []news
}

// show shows a group the set of its own, or none if there is none, and leaves
// the bulletin about it to be told. One before it is told first: who has not
// been told of the set before would not miss what that changed.
func (s *shard) show(group string, own *shown, b *bulletin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellLocked()
	if own != nil {
		s.groups[group] = own
	} else {
		delete(s.groups, group)
	}
	if len(b.news) > 0 {
		s.untold = b
	}
}

// catchUp tells the open watches what they have not been told.
func (s *shard) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellLocked()
}

func (s *shard) tellLocked() {
	b := s.untold
	if s.untold = nil; b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.news {
		s.tellType(b.group, &b.news[i])
	}
}

func (s *shard) tellType(group string, n *news) {
	ws := s.types[n.typ]
	if ws == nil {
		return
	}
	for i := 0; i < len(ws.open.all); {
		w := ws.open.all[i]
		if s.shownAs(w.group, group) && w.tell(n) {
			w.remove() // which puts another one in its place
			ws.answered.add(w)
		} else {
			i++
		}
	}
}

// shownAs reports whether the nodes of one group are shown the set of another.
func (s *shard) shownAs(group, as string) bool {
	if group == as {
		return true
	}
	_, own := s.groups[group]
	return as == "" && !own
}

func (s *shard) unanswered(types []string, ids map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, typ := range types {
		if ws := s.types[typ]; ws != nil {
			for _, w := range ws.answered.all {
				ids[w.node] = true
			}
		}
	}
	if s.untold == nil {
		return
	}
	for i := range s.untold.news {
		typ := s.untold.news[i].typ // the rest belongs to who tells
		if ws := s.types[typ]; ws != nil && slices.Contains(types, typ) {
			for _, w := range ws.open.all {
				if s.shownAs(w.group, s.untold.group) {
					ids[w.node] = true // or not, if it does not concern it
				}
			}
		}
	}
}

// cancel ends a watch: the server does so when the client replies, and when
// the stream ends. After that nothing is sent on its channel, which the server
// may close.
func (c *Cache) cancel(s *shard, typ string, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.in == nil {
		return
	}
	answered := w.in == &s.types[typ].answered
	w.remove()
	if answered {
		c.signal()
	}
}
