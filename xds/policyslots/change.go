package policyslots

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// Reasons why a slot cannot change.
var (
	// ErrReplayed means that a generation is not above all that were pushed.
	ErrReplayed = errors.New("generations must grow: sign a new statement with a higher one")
	// ErrNoCandidate means that the slot has no candidate.
	ErrNoCandidate = errors.New("nothing is on trial")
	// ErrNative means that there is no module to roll back.
	ErrNative = errors.New("the native policy decides already")
	// ErrChanged means that the candidate or the stable generation, or the goal, is not
	// the one that the caller named.
	ErrChanged = errors.New("the slot has changed in the meantime")
)

// Push makes a generation the candidate and replaces the present candidate. With the
// goal ToStable it becomes the stable generation. Pushing the candidate again sets its
// goal; pushing the stable generation again changes nothing. The error wraps
// ErrReplayed, or names the bad field.
func (s Slot) Push(t Trial) (Slot, error) {
	if err := CheckGoal(s.Kind, t.Goal, t.Permille, t.Scope); err != nil {
		return s, err
	}
	if err := t.Module.validate(); err != nil {
		return s, err
	}
	if c := s.Candidate; c != nil && c.same(t.Module) {
		if c.Goal == t.Goal && c.Permille == t.Permille && c.Scope == t.Scope {
			return s, nil
		}
		return s.SetGoal(t.Since, c.Generation, t.Goal, t.Permille, t.Scope)
	}
	if s.Stable != nil && s.Stable.same(t.Module) {
		if t.Goal == lifecycle.ToStable {
			return s, nil
		}
		return s, fmt.Errorf("generation %d of %s is the stable one already: %w", t.Generation, s.Kind, ErrReplayed)
	}
	if t.Generation <= s.Floor {
		return s, fmt.Errorf("generation %d of %s is not above %d: %w", t.Generation, s.Kind, s.Floor, ErrReplayed)
	}
	s = s.Clone()
	s.Floor = t.Generation
	s.Candidate = &t
	if t.Goal == lifecycle.ToStable {
		s = s.makeStable()
	}
	return s, nil
}

// same reports whether two modules have the same statement, bytes and configuration.
func (m *Module) same(o Module) bool {
	return m.Generation == o.Generation && m.SHA256 == o.SHA256 && bytes.Equal(m.Signature, o.Signature) && bytes.Equal(m.Configuration, o.Configuration)
}

// SetGoal sets how far the candidate may go; ToStable makes it the stable generation. A
// generation of 0 means the present candidate. The error wraps ErrNoCandidate or
// ErrChanged, or says what is wrong with the goal.
func (s Slot) SetGoal(now time.Time, generation lifecycle.Generation, g lifecycle.Goal, permille int, scope string) (Slot, error) {
	if err := s.checkCandidate(generation); err != nil {
		return s, err
	}
	if err := CheckGoal(s.Kind, g, permille, scope); err != nil {
		return s, err
	}
	s = s.Clone()
	if g == lifecycle.ToStable {
		return s.makeStable(), nil
	}
	t := *s.Candidate
	t.Goal, t.Permille, t.Scope, t.Since = g, permille, scope, now
	s.Candidate = &t
	return s, nil
}

// checkCandidate returns an error if the candidate is not the given generation.
func (s Slot) checkCandidate(generation lifecycle.Generation) error {
	switch {
	case s.Candidate == nil:
		return fmt.Errorf("slot %s: %w", s.Kind, ErrNoCandidate)
	case generation != lifecycle.Native && s.Candidate.Generation != generation:
		return fmt.Errorf("slot %s, generation %d: %w: generation %d", s.Kind, generation, ErrChanged, s.Candidate.Generation)
	}
	return nil
}

// makeStable makes the candidate the stable generation.
func (s Slot) makeStable() Slot {
	m := s.Candidate.Module
	s.Previous, s.Stable, s.Candidate = s.Stable, &m, nil
	return s
}

// Promote makes the candidate the stable generation, because every host runs it. The
// error wraps ErrNoCandidate, or ErrChanged if the hosts reported another generation or
// another goal.
func (s Slot) Promote(generation lifecycle.Generation) (Slot, error) {
	if err := s.checkCandidate(generation); err != nil {
		return s, err
	}
	if s.Candidate.Goal != lifecycle.ToActive {
		return s, fmt.Errorf("slot %s, generation %d: %w: the goal is %s", s.Kind, generation, ErrChanged, s.Candidate.Goal)
	}
	return s.Clone().makeStable(), nil
}

// Find returns the slot of a kind in a list, or a slot without modules if the list has
// none.
func Find(list []Slot, k lifecycle.Kind) Slot {
	for _, s := range list {
		if s.Kind == k {
			return s
		}
	}
	return Slot{Kind: k}
}

// Replace returns the list, sorted by kind, with s in place of the slot of its kind.
// The list is not changed.
func Replace(list []Slot, s Slot) []Slot {
	out := slices.DeleteFunc(slices.Clone(list), func(o Slot) bool { return o.Kind == s.Kind })
	out = append(out, s)
	slices.SortFunc(out, func(a, b Slot) int { return cmp.Compare(a.Kind, b.Kind) })
	return out
}

// ValidateAll checks that a list has valid slots, sorted by kind, each once.
func ValidateAll(list []Slot) error {
	for i, s := range list {
		if err := s.Validate(); err != nil {
			return err
		}
		if i > 0 && list[i-1].Kind >= s.Kind {
			return fmt.Errorf("slot %s after %s: slots must be sorted, each once", s.Kind, list[i-1].Kind)
		}
	}
	return nil
}
