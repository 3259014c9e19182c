package slothost

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/meter"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	maxModule = meter.MaxSize // bytes
	maxReason = 512           // bytes of a reason that are kept
)

// desired is a spec that was checked: what a slot should run, and which statements may run
// once it is in force.
type desired struct {
	offers  []offer
	history history
	stable  bool // it has a stable module
}

// Check returns what is wrong with a spec: its form, the signatures of its statements, their
// kinds and configurations, whether they are older than what this host has admitted, and
// whether its modules have the digests that were signed. The error is permanent: the same
// spec is refused again. An expired candidate is not an error: it will be rejected, and the
// stable module beside it decides on.
//
// Status reports the error until a spec of the slot is accepted. What a spec rolls back is
// rolled back at once, also when the spec is refused: what an operator rolls back must not
// run on because something else in the spec is wrong.
func (s *Slots) Check(w lifecycle.SlotSpec) error { return s.check(w, false) }

// Apply makes a spec the desired state of its slot: modules are offered, goals changed,
// what is not in the spec any more is withdrawn. It refuses what Check refuses, and may be
// called again with the same spec.
//
// It does not wait for the disk: Run writes to File what the spec admits, and only then puts
// the spec in force; while that fails, Status reports it and Run tries again. Modules that
// the spec lacks are fetched.
//
// An active generation that is not in the spec decides on while the spec has a newer
// stable one: until that takes over, and also when that fails here. Otherwise it is
// rolled back.
func (s *Slots) Apply(w lifecycle.SlotSpec) error { return s.check(w, true) }

// Refuse records why a spec of a slot cannot be read, for Status.
func (s *Slots) Refuse(kind lifecycle.Kind, err error) {
	if k := s.slotOf(kind); k != nil {
		k.refuse(err)
	}
}

// refuse records why the newest spec of a slot is refused; nil if it is not.
func (s *slot) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != s.refusal {
		s.log.Warn("policy slot: configuration rejected, keeping the current module", "error", text)
	}
	s.refusal = text
}

// check rolls back what a spec rolls back, and returns why the spec is refused. With apply, one
// that is not refused is to be put in force.
func (s *Slots) check(w lifecycle.SlotSpec, apply bool) error {
	k := s.slotOf(w.Kind)
	switch {
	case s.err != nil:
		return s.err
	case k == nil:
		return fmt.Errorf("slot %.40s: this host has no such slot", w.Kind)
	}
	if len(w.RolledBack) <= lifecycle.MaxRolledBack {
		k.rollBack(w.RolledBack)
	}
	err := k.desire(w, apply)
	if err != nil {
		err = fmt.Errorf("slot %s: %w", w.Kind, err)
	}
	k.refuse(err)
	return err
}

// rollBack ends generations for good, present or not.
func (s *slot) rollBack(all []lifecycle.RolledBackModule) {
	for _, e := range all {
		s.step(func(m *machine) {
			s.history.recordRollback(e.Generation)
			if s.next != nil { // it does not know of the rollback
				s.next.offers = slices.DeleteFunc(s.next.offers, func(o offer) bool { return o.Generation == e.Generation })
			}
			m.rollBack(e.Generation, e.Reason)
		})
		s.host.changed() // the history is to be written
	}
}

// desire returns why a spec cannot be the desired state. With apply, one that can is the next
// to be put in force. Meanwhile no other spec is: it might admit newer statements.
func (s *slot) desire(w lifecycle.SlotSpec, apply bool) error {
	if err := w.Validate(); err != nil {
		return err
	}
	next := &desired{stable: len(w.Candidates) > 0 && w.Candidates[0].Stable}
	var all []sign.Statement
	for _, c := range w.Candidates {
		st, err := s.statement(c)
		if err == nil {
			err = st.CheckConfiguration(c.Configuration)
		}
		if err == nil && c.Module != nil {
			err = checkBytes(c.Module, st.Digest)
		}
		if err != nil {
			return fmt.Errorf("generation %d: %w", c.Generation, err)
		}
		next.offers = append(next.offers, offer{Candidate: c, statement: st})
		all = append(all, st)
	}
	before, goesBack := s.previous(w)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordRan() // the spec may go back to a module that is active now
	next.history = s.history.clone()
	for _, st := range all {
		if err := next.history.admit(st); err != nil {
			return fmt.Errorf("generation %d: %w", st.Generation, err)
		}
	}
	if goesBack && next.history.admit(before) == nil {
		all = slices.Insert(all, 0, before)
	}
	next.history.recordWanted(all)
	switch {
	case apply && s.stopped:
		return errors.New("the slot has stopped")
	case apply:
		s.next = next
		s.host.changed()
	}
	return nil
}

// previous returns the statement of the spec's previous module, which must be older than
// the stable one.
func (s *slot) previous(w lifecycle.SlotSpec) (st sign.Statement, ok bool) {
	f, err := sign.Decode(w.Previous)
	if err != nil || f.Statement.Generation >= w.Candidates[0].Generation {
		return st, false
	}
	st, err = s.statement(lifecycle.Candidate{Generation: f.Statement.Generation, Signature: w.Previous})
	return st, err == nil
}

// statement verifies the statement of a candidate: the ring must have signed it, for
// this kind.
func (s *slot) statement(c lifecycle.Candidate) (sign.Statement, error) {
	f, err := sign.Decode(c.Signature)
	if err != nil {
		return sign.Statement{}, err
	}
	st, err := sign.VerifyStatement(f, s.host.config.Ring, time.Time{})
	if err != nil {
		return st, err
	}
	return st, s.checkStatement(st, c)
}

// checkStatement returns why a signed statement is not about a candidate for the slot.
func (s *slot) checkStatement(st sign.Statement, c lifecycle.Candidate) error {
	_, granted := st.Grant(s.kind)
	switch {
	case !granted:
		return fmt.Errorf("%s is not signed for %s", st.Name, s.kind)
	case st.Generation != c.Generation:
		return fmt.Errorf("%s is signed as generation %d", st.Name, st.Generation)
	case c.SHA256 != lifecycle.Digest{} && c.SHA256 != st.Digest:
		return fmt.Errorf("%s: the statement is about module %s, not %s", st.Name, st.Digest, c.SHA256)
	case c.Name != "" && c.Name != st.Name || c.Version != "" && c.Version != st.Version:
		return fmt.Errorf("the statement is about %s %s, not %.80q %.80q", st.Name, st.Version, c.Name, c.Version)
	}
	return nil
}

// slotOf returns the slot of a kind, nil when the host has none.
func (s *Slots) slotOf(kind lifecycle.Kind) *slot {
	k, ok := abi.ParseKind(string(kind))
	if !ok {
		return nil
	}
	return s.slots[k]
}
