package policyslots

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// Rollback ends the newest generation for all hosts: the candidate, or else the stable
// one, which is replaced by the previous one or by the native policy. A generation of 0
// means the newest one. The error wraps ErrNative or ErrChanged.
func (s Slot) Rollback(now time.Time, generation lifecycle.Generation, reason, by string) (Slot, error) {
	if s.Candidate != nil {
		return s.Withdraw(now, generation, reason, by)
	}
	return s.Revoke(now, generation, reason, by)
}

// Revoke ends the stable generation for all hosts, also while there is a candidate. The
// previous generation or the native policy replaces it. A generation of 0 means the
// stable one. The error wraps ErrNative or ErrChanged.
func (s Slot) Revoke(now time.Time, generation lifecycle.Generation, reason, by string) (Slot, error) {
	switch {
	case s.Stable == nil:
		return s, fmt.Errorf("slot %s: %w", s.Kind, ErrNative)
	case generation != lifecycle.Native && s.Stable.Generation != generation:
		return s, fmt.Errorf("slot %s, generation %d: %w: generation %d", s.Kind, generation, ErrChanged, s.Stable.Generation)
	}
	s = s.Clone().end(*s.Stable, now, reason, by)
	s.Stable, s.Previous = s.Previous, nil
	return s, nil
}

// Withdraw ends the candidate for all hosts, because it failed on one. The error
// wraps ErrNoCandidate or ErrChanged.
func (s Slot) Withdraw(now time.Time, generation lifecycle.Generation, reason, by string) (Slot, error) {
	if err := s.checkCandidate(generation); err != nil {
		return s, err
	}
	s = s.Clone()
	s = s.end(s.Candidate.Module, now, reason, by)
	s.Candidate = nil
	return s, nil
}

// end records that a generation never runs again.
func (s Slot) end(m Module, now time.Time, reason, by string) Slot {
	s.Ended = append(s.Ended, Ended{m.Generation, m.Name, cleantext.Printable(reason, MaxReason), cleantext.Printable(by, MaxName), now})
	slices.SortFunc(s.Ended, func(a, b Ended) int { return cmp.Compare(a.Generation, b.Generation) })
	s.Ended = s.Ended[max(0, len(s.Ended)-MaxEnded):]
	return s
}
