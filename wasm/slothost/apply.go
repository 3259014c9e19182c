package slothost

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	maxModule = 8 << 20 // bytes
	maxReason = 512     // bytes of a reason that are kept
	maxAbout  = 64      // generations whose names Status knows
)

// ErrNotWritten means that Config.File could not be written: the spec may be applied
// again later.
var ErrNotWritten = errors.New("the file of admitted modules could not be written")

// desired is what a slot should run, and what it needs to know to get there.
type desired struct {
	history history
	spec    lifecycle.SlotSpec // the last one applied, without the modules that were offered
	about   map[lifecycle.Generation]*about
	refusal string // why the newest spec is refused, or could not be written
	// unwritten is the newest spec if it could not be written; nil otherwise.
	unwritten *lifecycle.SlotSpec
}

// about is what is known of a generation besides its phase.
type about struct {
	statement sign.Statement
	refused   bool // the slot refused the last offer of this spec
}

// Check returns what is wrong with a spec, without the modules' bytes: its form, the
// signatures of its statements, their kinds and configurations, and whether they are
// older than what this host has admitted. The error is permanent: the same spec is
// refused again. An expired candidate is not an error: it will be rejected, and the
// stable module beside it decides on.
//
// Status reports the error until a spec of the slot is accepted. What a refused spec rolls
// back is rolled back nevertheless: what an operator rolls back must not run on because
// something else in the spec is wrong.
func (s *Slots) Check(w lifecycle.SlotSpec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _, err := s.check(w)
	if err != nil {
		s.rollBack(w)
	}
	s.refuse(w.Kind, err)
	return err
}

// Refuse records why a spec of a slot cannot be read, for Status.
func (s *Slots) Refuse(kind lifecycle.Kind, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse(kind, err)
}

// refuse records why the newest spec of a slot is refused; nil if it is not. The lock is held.
func (s *Slots) refuse(kind lifecycle.Kind, err error) {
	k := s.slotOf(kind)
	if k == nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != k.refusal {
		k.log.Warn("policy slot: configuration rejected, keeping the current module", "error", text)
	}
	k.refusal = text
}

// check returns the statements of a spec, and its slot's history with them.
func (s *Slots) check(w lifecycle.SlotSpec) ([]sign.Statement, history, error) {
	if s.err != nil {
		return nil, history{}, s.err
	}
	k := s.slotOf(w.Kind)
	if k == nil {
		return nil, history{}, fmt.Errorf("slot %.40s: this host has no such slot", w.Kind)
	}
	refuse := func(err error) ([]sign.Statement, history, error) {
		return nil, history{}, fmt.Errorf("slot %s: %w", w.Kind, err)
	}
	if err := w.Validate(); err != nil {
		return refuse(err)
	}
	k.recordRan() // the spec may go back to a module that is active now
	next := k.history.clone()
	for _, e := range w.RolledBack {
		next.recordRollback(e.Generation)
	}
	var all []sign.Statement
	before, goesBack := s.previous(k, w, next)
	for _, c := range w.Candidates {
		st, err := s.statement(k, c)
		if err == nil {
			err = st.CheckConfiguration(c.Configuration)
		}
		if err == nil {
			err = next.admit(st)
		}
		if err != nil {
			return refuse(fmt.Errorf("generation %d: %w", c.Generation, err))
		}
		all = append(all, st)
	}
	if goesBack {
		next.recordWanted(append([]sign.Statement{before}, all...))
	} else {
		next.recordWanted(all)
	}
	return all, next, nil
}

// previous returns the statement of the spec's previous module, if the host may go
// back to it.
func (s *Slots) previous(k *slot, w lifecycle.SlotSpec, h history) (st sign.Statement, ok bool) {
	f, err := sign.Decode(w.Previous)
	if err != nil || f.Statement.Generation >= w.Candidates[0].Generation {
		return st, false
	}
	st, err = s.statement(k, lifecycle.Candidate{Generation: f.Statement.Generation, Signature: w.Previous})
	return st, err == nil && h.admit(st) == nil
}

// statement verifies the statement of a candidate: the ring must have signed it, for
// this kind.
func (s *Slots) statement(k *slot, c lifecycle.Candidate) (sign.Statement, error) {
	f, err := sign.Decode(c.Signature)
	if err != nil {
		return sign.Statement{}, err
	}
	st, err := sign.VerifyStatement(f, s.config.Ring, time.Time{})
	if err != nil {
		return st, err
	}
	return st, k.checkStatement(st, c)
}

// checkStatement returns why a signed statement is not about a candidate for the slot.
func (k *slot) checkStatement(st sign.Statement, c lifecycle.Candidate) error {
	_, granted := st.Grant(k.kind)
	switch {
	case !granted:
		return fmt.Errorf("%s is not signed for %s", st.Name, k.kind)
	case st.Generation != c.Generation:
		return fmt.Errorf("%s is signed as generation %d", st.Name, st.Generation)
	case c.SHA256 != lifecycle.Digest{} && c.SHA256 != st.Digest:
		return fmt.Errorf("%s: the statement is about module %s, not %s", st.Name, st.Digest, c.SHA256)
	case c.Name != "" && c.Name != st.Name || c.Version != "" && c.Version != st.Version:
		return fmt.Errorf("the statement is about %s %s, not %.80q %.80q", st.Name, st.Version, c.Name, c.Version)
	}
	return nil
}

// Apply makes a spec the desired state of its slot: it offers new modules, changes
// goals, withdraws what is not in the spec any more, and ends what was rolled back. It
// may be called again with the same spec. It refuses what Check refuses, and changes
// nothing then. Other errors are permanent, too, except those that wrap
// ErrNotWritten: Run tries again. Modules that the spec lacks are fetched.
//
// An active generation that is not in the spec decides on while the spec has a newer
// stable one: until that takes over, and also when that fails here. Otherwise it is
// rolled back at once.
func (s *Slots) Apply(w lifecycle.SlotSpec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, next, err := s.check(w)
	if err != nil {
		return err
	}
	k := s.slotOf(w.Kind)
	unwritten := k.unwritten != nil
	k.unwritten = nil
	phases := k.phases()
	w.Candidates, w.RolledBack = slices.Clone(w.Candidates), slices.Clone(w.RolledBack)
	for i := range w.Candidates {
		c := &w.Candidates[i]
		switch {
		case !k.offerable(c.Generation, phases):
			c.Module = nil
		case c.Module == nil:
			c.Module = k.bytes(c.Generation)
		default: // wrong bytes do not end the generation
			if err := checkBytes(c.Module, all[i].Digest); err != nil {
				return fmt.Errorf("slot %s: generation %d: %w", w.Kind, c.Generation, err)
			}
		}
	}
	// The file comes first, so that a host that crashes knows what was offered.
	before := k.history
	k.history = next
	if err := s.save(); err != nil {
		k.history, k.unwritten = before, &w
		err = fmt.Errorf("slot %s: %w: %w", w.Kind, ErrNotWritten, err)
		s.refuse(w.Kind, err)
		return err
	}
	if unwritten {
		k.refusal = ""
	}
	for _, st := range all {
		if k.about[st.Generation] == nil {
			k.about[st.Generation] = &about{statement: st}
		}
	}
	for _, a := range k.about {
		a.refused = false
	}
	k.spec = w
	k.stable.Store(len(w.Candidates) > 0 && w.Candidates[0].Stable)
	k.forgetUnused()
	s.changed() // Run fetches what is missing
	if err = k.reconcile(); err != nil {
		s.refuse(w.Kind, err)
	}
	return err
}

// rollBack ends what a spec lists as rolled back. The lock is held.
func (s *Slots) rollBack(w lifecycle.SlotSpec) {
	k := s.slotOf(w.Kind)
	if k == nil || s.err != nil || len(w.RolledBack) > lifecycle.MaxRolledBack {
		return
	}
	k.recordRan()
	for _, e := range w.RolledBack {
		k.history.recordRollback(e.Generation)
	}
	if err := s.save(); err != nil {
		k.log.Error("saving the rolled back policy modules failed", "err", err)
	}
	k.rollBack(w.RolledBack)
}

// rollBack ends generations that are present.
func (k *slot) rollBack(all []lifecycle.RolledBackModule) {
	for _, e := range all {
		k.step(func(m *machine) { m.rollBack(e.Generation, cleantext.Truncate(e.Reason, maxReason)) })
	}
}

// forgetUnused drops what is known of generations that Status does not report any
// more.
func (k *slot) forgetUnused() {
	if len(k.about) < maxAbout {
		return
	}
	phases := k.phases()
	for g := range k.about {
		if _, ok := phases[g]; !ok && k.wanted(g) == nil {
			delete(k.about, g)
		}
	}
}

// phases returns the phases of the slot's generations. A generation that ended and was
// offered again has its present phase.
func (k *slot) phases() map[lifecycle.Generation]lifecycle.Phase {
	phases := map[lifecycle.Generation]lifecycle.Phase{}
	for _, m := range k.state().Modules { // the present ones first, then the latest
		if _, ok := phases[m.Generation]; !ok {
			phases[m.Generation] = m.Phase
		}
	}
	return phases
}

// offerable reports whether a generation is not present and may be offered.
func (k *slot) offerable(g lifecycle.Generation, phases map[lifecycle.Generation]lifecycle.Phase) bool {
	switch phases[g] {
	case 0, lifecycle.Superseded, lifecycle.Withdrawn:
		a := k.about[g]
		return a == nil || !a.refused
	}
	return false
}

// bytes returns the module of a generation that waits to be offered.
func (k *slot) bytes(g lifecycle.Generation) []byte {
	if c := k.wanted(g); c != nil {
		return c.Module
	}
	return nil
}

// wanted returns the candidate of the spec with the generation; nil for none.
func (k *slot) wanted(g lifecycle.Generation) *lifecycle.Candidate {
	for i := range k.spec.Candidates {
		if k.spec.Candidates[i].Generation == g {
			return &k.spec.Candidates[i]
		}
	}
	return nil
}

// reconcile brings the slot towards the spec. The error is what the slot refuses, and
// is returned once. The lock of Slots is held.
func (k *slot) reconcile() error {
	k.rollBack(k.spec.RolledBack)
	for g, phase := range k.phases() {
		if phase < lifecycle.Active && k.wanted(g) == nil {
			k.step(func(m *machine) { m.withdraw(g) })
		}
	}
	err := k.offerAll()
	k.rollBackUnwanted()
	return err
}

// offerAll offers the candidates in their order. A newer one would supersede an older
// one that still waits, so it is offered once that one is being built.
func (k *slot) offerAll() error {
	var errs []error
	phases := k.phases()
	for i := range k.spec.Candidates {
		if i > 0 && k.phases()[k.spec.Candidates[i-1].Generation] == lifecycle.Waiting {
			break
		}
		c := &k.spec.Candidates[i]
		g := c.Generation
		o := k.offerOf(*c)
		switch before := k.offered(g); {
		case before != nil && phases[g] < lifecycle.Active && !before.sameGoal(o):
		case c.Module != nil && k.offerable(g, phases):
		default:
			continue
		}
		c.Module = nil
		if err := k.accept(o); err != nil {
			k.about[g].refused = true
			errs = append(errs, fmt.Errorf("slot %s: %w", k.kind, err))
		}
	}
	return errors.Join(errs...)
}

// rollBackUnwanted ends an active generation that the spec does not have, unless a
// newer one is stable: that one will take over, or has failed here, and then the
// active one is what the host fell back to.
func (k *slot) rollBackUnwanted() {
	for {
		active := k.state().Active
		if active == lifecycle.Native || k.wanted(active) != nil {
			return
		}
		for _, c := range k.spec.Candidates {
			if c.Stable && c.Generation > active {
				return
			}
		}
		if !k.step(func(m *machine) { m.rollBack(active, "not part of the desired state any more") }) {
			return
		}
	}
}

// offerOf returns the offer of a candidate, which ends when its statement expires.
func (k *slot) offerOf(c lifecycle.Candidate) offer {
	o := offer{Candidate: c}
	if end := k.about[c.Generation].statement.NotAfter; end != 0 {
		o.until = policies.Micros(end+1) * policies.Second
	}
	return o
}

// offered returns the last offer of a generation that has not ended, nil for none.
func (k *slot) offered(g lifecycle.Generation) *offer {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.machine.find(g); c != nil {
		o := c.offer
		return &o
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
