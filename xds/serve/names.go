package serve

// names are what a stream subscribes to, by type.
type names map[string]*subscribed

// subscribed are the names of one type: a set where the client tells what
// changes, and a number where it tells them all each time.
type subscribed struct {
	set map[string]struct{}
	n   int
}

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
		s.set[name] = struct{}{}
	}
	for _, name := range unsubscribe {
		delete(s.set, name)
	}
}

// replace follows a request of the state-of-the-world protocol.
func (ns names) replace(typ string, all []string) { ns.of(typ).n = len(all) }

// count is how many there are of all types.
func (ns names) count() int {
	total := 0
	for _, s := range ns {
		total += len(s.set) + s.n
	}
	return total
}
