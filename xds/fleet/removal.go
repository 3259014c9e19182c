package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// HeldRemoval is a configured list that is not applied, because it lacks more than half
// of a model's replicas: those of the list in force or, at the start, of the stored plan. A
// file that was cut, or that another fleet's replaced, looks like that. An operator confirms
// it by its digest, for all control planes of the store.
type HeldRemoval struct {
	Digest string
	Text   string // which replicas would leave
	Since  time.Time
	// AtStart says that the control plane started with the list, so that no other one is in force
	// there.
	AtStart bool
	list    []policies.Replica
}

// shownIDs is how many replicas a HeldRemoval names of each model.
const shownIDs = 8

// heldRemoval returns the list as a HeldRemoval if it removes more than half of a
// model's configured replicas at once; nil if it may be applied. A replica that serves
// another model is removed from its own, and one that is marked as draining is not.
func (s *State) heldRemoval(now time.Time, list []policies.Replica) *HeldRemoval {
	if s.rules.AnyRemoval {
		return nil
	}
	stays := make(map[policies.ReplicaID]string, len(list))
	for _, r := range list {
		stays[r.ID] = r.Model
	}
	var texts []string
	for _, m := range s.models {
		var gone []string
		before := s.replicasBefore(m.Name)
		for _, id := range before {
			if stays[id] != m.Name {
				gone = append(gone, string(id))
			}
		}
		if 2*len(gone) <= len(before) {
			continue
		}
		names := strings.Join(gone[:min(len(gone), shownIDs)], ", ")
		if len(gone) > shownIDs {
			names += ", …"
		}
		texts = append(texts, fmt.Sprintf("%d of the %d replicas of %s (%s)", len(gone), len(before), m.Name, names))
	}
	if len(texts) == 0 {
		return nil
	}
	digest := DigestReplicas(list)
	if digest == s.object.ConfirmedRemoval {
		return nil
	}
	return &HeldRemoval{Digest: digest, Text: strings.Join(texts, " and "), Since: now, AtStart: !s.registry.Configured(), list: list}
}

// replicasBefore lists the replicas of a model that a new configured list is compared with: those of
// the list in force, or, at the start, those of the stored plan.
func (s *State) replicasBefore(model string) (ids []policies.ReplicaID) {
	if s.registry.Configured() {
		for _, r := range s.registry.All() {
			if r.Model == model && !r.Removed {
				ids = append(ids, r.ID)
			}
		}
		return ids
	}
	for _, p := range s.object.Plans {
		for _, st := range p.Stages {
			if p.Model == model {
				ids = append(ids, st.Replicas...)
			}
		}
	}
	return ids
}

// DigestReplicas identifies a configured list, in any order.
func DigestReplicas(list []policies.Replica) string {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b policies.Replica) int { return strings.Compare(string(a.ID), string(b.ID)) })
	text, err := json.Marshal(list)
	if err != nil {
		return "" // a Replica has no field that cannot be encoded
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// configureHeld applies the list that is held if the stored object confirms it, or if the stored plan
// has lost the replicas meanwhile.
func (s *State) configureHeld(now time.Time) {
	if s.held != nil {
		s.configure(now, s.held.list)
	}
}
