package frontend

import "github.com/cascadeinfer/cascade/policies"

// Progress returns a number for each peer that holds streams of this front's
// clients, which changes when the peer has sent something of one of them: it
// lives, whatever else is heard of it.
func (f *Front) Progress() map[policies.ReplicaID]uint64 {
	calls := make(map[policies.ReplicaID]uint64)
	f.Each(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l, ok := s.leg.(*wireLeg); ok && s.holder != f.cfg.Replica {
			calls[s.holder] += l.watch.calls.Load()
		}
		return true
	})
	return calls
}
