package frontend

import "github.com/cascadeinfer/cascade/policies"

// Holders returns the peers that hold streams of this front's clients, or are
// about to, in no order.
func (f *Server) Holders() []policies.ReplicaID {
	found := make(map[policies.ReplicaID]struct{})
	f.EachStream(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		found[s.holder] = struct{}{}
		found[s.trying] = struct{}{}
		return true
	})
	return f.peersOf(found)
}

// FrontEnds returns the peers whose clients' requests run on the own engine, in no
// order.
func (f *Server) FrontEnds() []policies.ReplicaID {
	found := make(map[policies.ReplicaID]struct{})
	f.mu.Lock()
	for r := range f.localLegs {
		found[r.front] = struct{}{}
	}
	f.mu.Unlock()
	return f.peersOf(found)
}

func (f *Server) peersOf(found map[policies.ReplicaID]struct{}) []policies.ReplicaID {
	delete(found, f.cfg.Replica)
	delete(found, "")
	all := make([]policies.ReplicaID, 0, len(found))
	for id := range found {
		all = append(all, id)
	}
	return all
}

// HandlePeerLoss says that a peer is gone: streams that it holds are rescued, and what
// runs here for its clients ends. It does nothing for the own replica.
func (f *Server) HandlePeerLoss(peer policies.ReplicaID) {
	if peer == f.cfg.Replica {
		return
	}
	f.EachStream(func(s *Stream) bool {
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
	f.cancelLegs(errGone, func(r *localLeg) bool { return r.front == peer })
}

// cancelLegs ends what runs on the own engine and is chosen.
func (f *Server) cancelLegs(why error, chosen func(*localLeg) bool) {
	f.mu.Lock()
	var all []*localLeg
	for r := range f.localLegs {
		if chosen(r) {
			all = append(all, r)
		}
	}
	f.mu.Unlock()
	for _, r := range all {
		r.link.lose(why)
	}
}

// PeerProgress returns a number for each peer that holds streams of this front's
// clients, which changes when the peer has sent something of one of them: it
// lives, whatever else is heard of it.
func (f *Server) PeerProgress() map[policies.ReplicaID]uint64 {
	calls := make(map[policies.ReplicaID]uint64)
	f.EachStream(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l, ok := s.leg.(*wireLeg); ok && s.holder != f.cfg.Replica {
			calls[s.holder] += l.watch.calls.Load()
		}
		return true
	})
	return calls
}
