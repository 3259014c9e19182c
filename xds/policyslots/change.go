package policyslots

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Why a slot does not change.
var (
	// ErrReplayed says that a generation is not above all that were pushed.
	ErrReplayed = errors.New("generations only grow: sign a new statement with a higher one")
	// ErrNoCandidate says that nothing is on trial.
	ErrNoCandidate = errors.New("nothing is on trial")
	// ErrNative says that there is no module to roll back.
	ErrNative = errors.New("the native policy decides already")
	// ErrOther says that the generation is not the one that was meant.
	ErrOther = errors.New("another generation is there by now")
)

// Push puts a generation on trial, in the place of the one that was; with the
// goal Proven it takes the place of what is proven. The one that is on trial, pushed
// again, gets the goal; what is proven stays that. The error wraps ErrReplayed, or
// says what is wrong with the trial.
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
		return s.Move(t.Since, c.Generation, t.Goal, t.Permille, t.Scope)
	}
	if s.Proven != nil && s.Proven.same(t.Module) {
		if t.Goal == Proven {
			return s, nil
		}
		return s, fmt.Errorf("generation %d of %s is what the fleet runs: %w", t.Generation, s.Kind, ErrReplayed)
	}
	if t.Generation <= s.Floor {
		return s, fmt.Errorf("generation %d of %s, which has seen %d: %w", t.Generation, s.Kind, s.Floor, ErrReplayed)
	}
	s = s.Clone()
	s.Floor = t.Generation
	s.Candidate = &t
	if t.Goal == Proven {
		s = s.prove()
	}
	return s, nil
}

// same reports whether two modules are the same statement about the same bytes,
// configured alike.
func (m *Module) same(o Module) bool {
	return m.Generation == o.Generation && m.SHA256 == o.SHA256 && bytes.Equal(m.Signature, o.Signature) && bytes.Equal(m.Configuration, o.Configuration)
}

// Move sets how far the candidate may go; Proven ends its trial. generation is
// the one that is meant, 0 whichever it is. The error wraps ErrNoCandidate or
// ErrOther, or says what is wrong with the goal.
func (s Slot) Move(now time.Time, generation uint64, g Goal, permille int, scope string) (Slot, error) {
	if err := s.is(generation); err != nil {
		return s, err
	}
	if err := CheckGoal(s.Kind, g, permille, scope); err != nil {
		return s, err
	}
	s = s.Clone()
	if g == Proven {
		return s.prove(), nil
	}
	t := *s.Candidate
	t.Goal, t.Permille, t.Scope, t.Since = g, permille, scope, now
	s.Candidate = &t
	return s, nil
}

// is says why the candidate is not the generation that is meant.
func (s Slot) is(generation uint64) error {
	switch {
	case s.Candidate == nil:
		return fmt.Errorf("slot %s: %w", s.Kind, ErrNoCandidate)
	case generation != 0 && s.Candidate.Generation != generation:
		return fmt.Errorf("slot %s, generation %d: %w: %d", s.Kind, generation, ErrOther, s.Candidate.Generation)
	}
	return nil
}

// prove makes the candidate what the fleet runs.
func (s Slot) prove() Slot {
	m := s.Candidate.Module
	s.Previous, s.Proven, s.Candidate = s.Proven, &m, nil
	return s
}

// Settle makes the candidate what the fleet runs, because every host says that it
// is. The error wraps ErrNoCandidate or ErrOther: what was decided about another
// one, or about another goal, is not about this one.
func (s Slot) Settle(generation uint64) (Slot, error) {
	if err := s.is(generation); err != nil {
		return s, err
	}
	if s.Candidate.Goal != Active {
		return s, fmt.Errorf("slot %s, generation %d: %w: its goal is %s", s.Kind, generation, ErrOther, s.Candidate.Goal)
	}
	return s.Clone().prove(), nil
}

// Withdraw ends the candidate for all hosts, because it failed on one. The error
// wraps ErrNoCandidate or ErrOther.
func (s Slot) Withdraw(now time.Time, generation uint64, reason, by string) (Slot, error) {
	if err := s.is(generation); err != nil {
		return s, err
	}
	s = s.Clone()
	s = s.end(s.Candidate.Module, now, reason, by)
	s.Candidate = nil
	return s, nil
}

// Rollback ends the newest generation for all hosts: the candidate, else the
// proven one, whose place the one before it takes, or the native policy.
// generation is the one that is meant, 0 whichever it is. The error wraps
// ErrNative or ErrOther.
func (s Slot) Rollback(now time.Time, generation uint64, reason, by string) (Slot, error) {
	if s.Candidate != nil {
		return s.Withdraw(now, generation, reason, by)
	}
	return s.Revoke(now, generation, reason, by)
}

// Revoke ends what is proven for all hosts, whatever is on trial: the one before it
// takes its place, or the native policy. generation is the one that is meant, 0
// whichever it is. The error wraps ErrNative or ErrOther.
func (s Slot) Revoke(now time.Time, generation uint64, reason, by string) (Slot, error) {
	switch {
	case s.Proven == nil:
		return s, fmt.Errorf("slot %s: %w", s.Kind, ErrNative)
	case generation != 0 && s.Proven.Generation != generation:
		return s, fmt.Errorf("slot %s, generation %d: %w: %d", s.Kind, generation, ErrOther, s.Proven.Generation)
	}
	s = s.Clone().end(*s.Proven, now, reason, by)
	s.Proven, s.Previous = s.Previous, nil
	return s, nil
}

// end notes that a generation never runs again.
func (s Slot) end(m Module, now time.Time, reason, by string) Slot {
	s.Ended = append(s.Ended, Ended{m.Generation, m.Name, Clip(reason, MaxReason), Clip(by, MaxName), now})
	slices.SortFunc(s.Ended, func(a, b Ended) int { return cmp.Compare(a.Generation, b.Generation) })
	s.Ended = s.Ended[max(0, len(s.Ended)-MaxEnded):]
	return s
}

// Of returns the slot of a kind out of a list; one without modules where there
// is none.
func Of(list []Slot, kind string) Slot {
	for _, s := range list {
		if s.Kind == kind {
			return s
		}
	}
	return Slot{Kind: kind}
}

// With returns the list, sorted by kind, with a slot in the place of the one of
// its kind. The list is not changed.
func With(list []Slot, s Slot) []Slot {
	out := slices.DeleteFunc(slices.Clone(list), func(o Slot) bool { return o.Kind == s.Kind })
	out = append(out, s)
	slices.SortFunc(out, func(a, b Slot) int { return cmp.Compare(a.Kind, b.Kind) })
	return out
}

// ValidateAll checks a list: valid slots, sorted by kind, each once.
func ValidateAll(list []Slot) error {
	for i, s := range list {
		if err := s.Validate(); err != nil {
			return err
		}
		if i > 0 && list[i-1].Kind >= s.Kind {
			return fmt.Errorf("slot %s after %s: they are sorted, each once", s.Kind, list[i-1].Kind)
		}
	}
	return nil
}
