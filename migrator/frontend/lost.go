package frontend

import "github.com/cascadeinfer/cascade/policies"

// Holders returns the peers that hold streams of this front's clients, or are
// about to, in no order.
func (f *Front) Holders() []policies.ReplicaID {
	found := make(map[policies.ReplicaID]struct{})
	f.Each(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		found[s.holder] = struct{}{}
		found[s.trying] = struct{}{}
		return true
	})
	return f.peersOf(found)
}

// Fronts returns the peers whose clients' requests run on the own engine, in no
// order.
func (f *Front) Fronts() []policies.ReplicaID {
	found := make(map[policies.ReplicaID]struct{})
	f.mu.Lock()
	for r := range f.residents {
		found[r.front] = struct{}{}
	}
	f.mu.Unlock()
	return f.peersOf(found)
}

func (f *Front) peersOf(found map[policies.ReplicaID]struct{}) []policies.ReplicaID {
	delete(found, f.cfg.Replica)
	delete(found, "")
	all := make([]policies.ReplicaID, 0, len(found))
	for id := range found {
		all = append(all, id)
	}
	return all
}

// Lost says that a peer is gone: streams that it holds are rescued, and what
// runs here for its clients ends. It does nothing for the own replica.
func (f *Front) Lost(peer policies.ReplicaID) {
	if peer == f.cfg.Replica {
		return
	}
	f.Each(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.trying == peer && s.link != nil {
			s.link.lose(errGone)
		}
		if l, ok := s.leg.(*wireLeg); ok && s.holder == peer {
			l.lose(errGone)
		}
		return true
	})
	f.lose(errGone, func(r *residence) bool { return r.front == peer })
}

// lose ends what runs on the own engine and is chosen.
func (f *Front) lose(why error, chosen func(*residence) bool) {
	f.mu.Lock()
	var all []*residence
	for r := range f.residents {
		if chosen(r) {
			all = append(all, r)
		}
	}
	f.mu.Unlock()
	for _, r := range all {
		r.link.lose(why)
	}
}
