package policyhost

import (
	"cmp"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Status returns the state of the slots as messages of a report, which belong to the
// caller.
func (n *Node) Status() []*api.SlotStatus {
	all := n.slots.Status()
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]*api.SlotStatus, len(all))
	for i, s := range all {
		s.Refused = cmp.Or(n.refused[s.Kind], s.Refused)
		n.addFetching(&s, n.specs[s.Kind])
		out[i] = policyslots.EncodeStatus(s)
	}
	return out
}

// addFetching adds the generations whose modules are being fetched; their reason is
// why the last attempt failed. The lock is held.
func (n *Node) addFetching(s *lifecycle.SlotStatus, spec lifecycle.SlotSpec) {
	s.Modules = s.Modules[:min(len(s.Modules), policyslots.MaxModules)]
	for _, c := range spec.Candidates {
		reason, fetching := n.fetching[c.SHA256]
		_, present := s.Module(c.Generation)
		if c.Module != nil || !fetching || present || len(s.Modules) == policyslots.MaxModules {
			continue
		}
		s.Modules = append(s.Modules, lifecycle.Status{
			Generation: c.Generation, Phase: lifecycle.Fetching, Goal: c.Goal, Permille: c.Permille, SHA256: c.SHA256, Reason: reason,
		})
	}
}
