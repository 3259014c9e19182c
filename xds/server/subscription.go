package server

// subscriptions holds the names that a stream subscribes to, by type.
type subscriptions map[string]*typeSubscription

// typeSubscription holds the names of one type: as a set where requests carry
// changes, and as their count alone where every request carries all names.
type typeSubscription struct {
	set map[string]struct{}
	nameCount
}

// nameCount is a number of names and their total length.
type nameCount struct{ names, bytes int }

func (ns subscriptions) byType(typ string) *typeSubscription {
	s := ns[typ]
	if s == nil {
		s = new(typeSubscription)
		ns[typ] = s
	}
	return s
}

// applyDelta applies a request of the incremental protocol.
func (ns subscriptions) applyDelta(typ string, subscribe, unsubscribe []string) {
	s := ns.byType(typ)
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

// applySotW applies a request of the state-of-the-world protocol.
func (ns subscriptions) applySotW(typ string, all []string) {
	now := nameCount{names: len(all)}
	for _, name := range all {
		now.bytes += len(name)
	}
	ns.byType(typ).nameCount = now
}

// size returns the count of the names of all types.
func (ns subscriptions) size() (all nameCount) {
	for _, s := range ns {
		all.names += s.names
		all.bytes += s.bytes
	}
	return all
}
