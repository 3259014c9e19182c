package frontend

import (
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Holders returns the peers that hold streams of this server's clients or are
// about to, in no order.
func (srv *Server) Holders() []policies.ReplicaID {
	found := make(map[policies.ReplicaID]struct{})
	srv.EachStream(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		found[s.machine.Holder()] = struct{}{}
		found[s.openingAt] = struct{}{}
		return true
	})
	return srv.peersOf(found)
}

// FrontEnds returns the peers whose clients' requests run on the own engine, in
// no order.
func (srv *Server) FrontEnds() []policies.ReplicaID {
	found := make(map[policies.ReplicaID]struct{})
	for _, r := range srv.registeredLegs() {
		found[r.frontEnd] = struct{}{}
	}
	return srv.peersOf(found)
}

func (srv *Server) peersOf(found map[policies.ReplicaID]struct{}) []policies.ReplicaID {
	delete(found, srv.cfg.Replica)
	delete(found, "")
	return slices.Collect(maps.Keys(found))
}

// HandlePeerLoss is called when a peer is gone: the streams that it holds are
// rescued, and what runs here for its clients ends. It does nothing for the own
// replica.
func (srv *Server) HandlePeerLoss(peer policies.ReplicaID) {
	if peer == srv.cfg.Replica {
		return
	}
	srv.EachStream(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.openingAt == peer && s.openingCall != nil {
			s.openingCall.abort(errReplicaGone)
		}
		if leg := s.peerLegLocked(); leg != nil && s.machine.Holder() == peer {
			leg.abort(errReplicaGone)
		}
		return true
	})
	srv.cancelLegs(errReplicaGone, func(r *localLeg) bool { return r.frontEnd == peer })
}

// cancelLegs aborts the legs on the own engine that are selected.
func (srv *Server) cancelLegs(why error, selected func(*localLeg) bool) {
	for _, r := range srv.registeredLegs() {
		if selected(r) {
			r.call.abort(why)
		}
	}
}

// PeerProgress returns a number for each peer that holds streams of this server's
// clients. The number changes when the peer has sent something of one of them,
// which shows that it lives.
func (srv *Server) PeerProgress() map[policies.ReplicaID]uint64 {
	calls := make(map[policies.ReplicaID]uint64)
	srv.EachStream(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if leg := s.peerLegLocked(); leg != nil {
			calls[s.machine.Holder()] += leg.ahead.reads.calls.Load()
		}
		return true
	})
	return calls
}
