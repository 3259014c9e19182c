package server

// names are what a stream subscribes to, by type.
type names map[string]*subscribed

// subscribed are the names of one type: a set where the client tells what
// changes, and their size where it tells them all each time.
type subscribed struct {
	set map[string]struct{}
	size
}

// size is how many names there are, and their bytes.
type size struct{ names, bytes int }

func (ns names) of(typ string) *subscribed {
	s := ns[typ]
	if s == nil {
		s = new(subscribed)
		ns[typ] = s
	}
	return s
}

// change follows a request of the incremental protocol.
func (ns names) change(typ string, subscribe, unsubscribe []string) {
	s := ns.of(typ)
	if s.set == nil && len(subscribe) > 0 {
		s.set = make(map[string]struct{}, len(subscribe))
	}
	for _, name := range subscribe {
		if _, there := s.set[name]; !there {
			s.set[name] = struct{}{}
			s.names, s.bytes = s.names+1, s.bytes+len(name)
		}
	}
	for _, name := range unsubscribe {
		if _, there := s.set[name]; there {
			delete(s.set, name)
			s.names, s.bytes = s.names-1, s.bytes-len(name)
		}
	}
}

// replace follows a request of the state-of-the-world protocol.
func (ns names) replace(typ string, all []string) {
	now := size{names: len(all)}
	for _, name := range all {
		now.bytes += len(name)
	}
	ns.of(typ).size = now
}

// size is that of the names of all types.
func (ns names) size() (all size) {
	for _, s := range ns {
		all.names += s.names
		all.bytes += s.bytes
	}
	return all
}
