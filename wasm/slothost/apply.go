package slothost

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/internal/swap"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	maxModule     = 8 << 20 // bytes
	maxRolledBack = 256     // generations that a spec rolls back
	maxReason     = 512     // bytes of a reason that are kept
	maxAbout      = 64      // generations whose names Status knows
)

// ErrNotWritten means that Config.File could not be written: the spec may be applied
// again later.
var ErrNotWritten = errors.New("the file of admitted modules could not be written")

// Check returns what is wrong with a spec, without the modules' bytes: its form, the
// signatures of its statements, their kinds and configurations, and whether they are
// older than what this host has admitted. The error is permanent: the same spec is
// refused again. An expired candidate is not an error: it will be rejected, and the
// stable module beside it decides on.
func (s *Slots) Check(w lifecycle.SlotSpec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _, err := s.check(w)
	return err
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
	if len(w.RolledBack) > maxRolledBack {
		return refuse(fmt.Errorf("rolled_back: %d generations, at most %d are allowed", len(w.RolledBack), maxRolledBack))
	}
	if err := checkOrder(w); err != nil {
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
func (s *Slots) previous(k *kindSlot, w lifecycle.SlotSpec, h history) (st sign.Statement, ok bool) {
	f, err := sign.Decode(w.Previous)
	if err != nil || len(w.Candidates) == 0 || !w.Candidates[0].Stable || f.Statement.Generation >= w.Candidates[0].Generation {
		return st, false
	}
	st, err = s.statement(k, lifecycle.Candidate{Generation: f.Statement.Generation, Signature: w.Previous})
	return st, err == nil && h.admit(st) == nil
}

// checkOrder checks the order of the candidates, and their goals.
func checkOrder(w lifecycle.SlotSpec) error {
	for i, c := range w.Candidates {
		switch {
		case i > 1 || i == 1 && !w.Candidates[0].Stable:
			return errors.New("candidates: at most one stable and then at most one newer is allowed")
		case i > 0 && c.Generation <= w.Candidates[i-1].Generation:
			return errors.New("candidates: must be in ascending generation")
		case i > 0 && c.Stable:
			return fmt.Errorf("generation %d: two candidates cannot be stable", c.Generation)
		case c.Stable && c.Goal != lifecycle.ToActive:
			return fmt.Errorf("generation %d: its goal must be active because it is stable", c.Generation)
		}
		if err := offerOf(c).Check(w.Kind); err != nil {
			return fmt.Errorf("generation %d: %w", c.Generation, err)
		}
	}
	return nil
}

// statement verifies the statement of a candidate: the ring must have signed it, for
// this kind.
func (s *Slots) statement(k *kindSlot, c lifecycle.Candidate) (sign.Statement, error) {
	f, err := sign.Decode(c.Signature)
	if err != nil {
		return sign.Statement{}, err
	}
	st, err := sign.VerifyStatement(f, s.config.Ring, time.Time{})
	if err != nil {
		return st, err
	}
	_, granted := st.Grant(k.kind)
	switch {
	case !granted:
		return st, fmt.Errorf("%s is not signed for %s", st.Name, k.kind)
	case st.Generation != c.Generation:
		return st, fmt.Errorf("%s is signed as generation %d", st.Name, st.Generation)
	case c.SHA256 != lifecycle.Digest{} && c.SHA256 != st.Digest:
		return st, fmt.Errorf("%s: the statement is about module %s, not %s", st.Name, st.Digest, c.SHA256)
	case c.Name != "" && c.Name != st.Name || c.Version != "" && c.Version != st.Version:
		return st, fmt.Errorf("the statement is about %s %s, not %.80q %.80q", st.Name, st.Version, c.Name, c.Version)
	}
	return st, nil
}

// Missing returns the digests of the modules that a spec needs and that have to be
// fetched: those that are not loaded, not being built, and not ended here. The spec
// has passed Check.
func (s *Slots) Missing(w lifecycle.SlotSpec) []lifecycle.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, _, err := s.check(w)
	if err != nil {
		return nil
	}
	k := s.slotOf(w.Kind)
	phases := k.phases()
	var missing []lifecycle.Digest
	for i, c := range w.Candidates {
		if c.Module == nil && k.offerable(c.Generation, phases) && k.bytes(c.Generation) == nil && !slices.Contains(missing, all[i].Digest) {
			missing = append(missing, all[i].Digest)
		}
	}
	return missing
}

// Apply makes a spec the desired state of its slot: it offers new modules, changes
// goals, withdraws what is not in the spec any more, and ends what was rolled back. It
// may be called again with the same spec. It refuses what Check refuses, and changes
// nothing then. Other errors are permanent, too, except those that wrap
// ErrNotWritten. Candidates whose bytes are missing wait for a spec that has them.
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
	phases := k.phases()
	w.Candidates, w.RolledBack = slices.Clone(w.Candidates), slices.Clone(w.RolledBack)
	for i := range w.Candidates {
		c := &w.Candidates[i]
		switch {
		case !k.offerable(c.Generation, phases):
			c.Module = nil
		case c.Module == nil:
			c.Module = k.bytes(c.Generation)
		case len(c.Module) > maxModule:
			return fmt.Errorf("slot %s: generation %d: the module has %d bytes, at most %d are allowed", w.Kind, c.Generation, len(c.Module), maxModule)
		case lifecycle.Sum(c.Module) != all[i].Digest: // a fetch went wrong, which does not end the generation
			return fmt.Errorf("slot %s: generation %d: the bytes do not have the digest %s", w.Kind, c.Generation, all[i].Digest)
		}
	}
	// The file comes first, so that a host that crashes knows what was offered.
	before := k.history
	k.history = next
	if err := s.save(); err != nil {
		k.history = before
		return fmt.Errorf("slot %s: %w: %w", w.Kind, ErrNotWritten, err)
	}
	for _, st := range all {
		if k.about[st.Generation] == nil {
			k.about[st.Generation] = &about{name: st.Name, version: st.Version, digest: st.Digest, mark: sign.MarkOf(st), notAfter: st.NotAfter}
		}
	}
	k.spec, k.refused = w, map[lifecycle.Generation]error{}
	k.stable.Store(len(w.Candidates) > 0 && w.Candidates[0].Stable)
	k.forgetUnused()
	return k.reconcile()
}

// RollBack ends what a spec lists as rolled back, and applies nothing else of it. It is
// for a spec that Check refuses: what an operator rolls back must not run on because
// something else in the spec is wrong.
func (s *Slots) RollBack(w lifecycle.SlotSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.slotOf(w.Kind)
	if k == nil || s.err != nil || len(w.RolledBack) > maxRolledBack {
		return
	}
	k.recordRan()
	for _, e := range w.RolledBack {
		k.history.recordRollback(e.Generation)
	}
	if err := s.save(); err != nil {
		s.config.Logger.Error("saving the rolled back policy modules failed", "kind", w.Kind, "err", err)
	}
	k.rollBack(w.RolledBack)
}

// rollBack ends generations that are present.
func (k *kindSlot) rollBack(all []lifecycle.RolledBackModule) {
	for _, e := range all {
		if phase := k.phases()[e.Generation]; phase > 0 && !phase.Ended() {
			k.slot.RollBack(e.Generation, clipReason(e.Reason))
		}
	}
}

// forgetUnused drops what is known of generations that Status does not report any
// more.
func (k *kindSlot) forgetUnused() {
	if len(k.about) < maxAbout {
		return
	}
	phases := k.phases()
	for g := range k.about {
		if _, ok := phases[g]; !ok && k.wanted(g) == nil {
			delete(k.about, g)
			delete(k.offered, g)
		}
	}
}

// phases returns the phases of the slot's generations. A generation that ended and was
// offered again has its present phase.
func (k *kindSlot) phases() map[lifecycle.Generation]lifecycle.Phase {
	phases := map[lifecycle.Generation]lifecycle.Phase{}
	for _, m := range k.slot.Status().Modules { // the present ones first, then the latest
		if _, ok := phases[m.Generation]; !ok {
			phases[m.Generation] = m.Phase
		}
	}
	return phases
}

// offerable reports whether a generation is not present and may be offered.
func (k *kindSlot) offerable(g lifecycle.Generation, phases map[lifecycle.Generation]lifecycle.Phase) bool {
	switch phases[g] {
	case 0, lifecycle.Superseded, lifecycle.Withdrawn:
		return k.refused[g] == nil
	}
	return false
}

// bytes returns the module of a generation that waits to be offered.
func (k *kindSlot) bytes(g lifecycle.Generation) []byte {
	if c := k.wanted(g); c != nil {
		return c.Module
	}
	return nil
}

// wanted returns the candidate of the spec with the generation; nil for none.
func (k *kindSlot) wanted(g lifecycle.Generation) *lifecycle.Candidate {
	for i := range k.spec.Candidates {
		if k.spec.Candidates[i].Generation == g {
			return &k.spec.Candidates[i]
		}
	}
	return nil
}

// reconcile brings the slot towards the spec. The error is what the slot refuses, and
// is returned once. The lock of Slots is held.
func (k *kindSlot) reconcile() error {
	k.rollBack(k.spec.RolledBack)
	for g, phase := range k.phases() {
		if phase < lifecycle.Active && k.wanted(g) == nil {
			k.slot.Withdraw(g)
		}
	}
	err := k.offerAll()
	k.rollBackUnwanted()
	return err
}

// offerAll offers the candidates in their order. A newer one would supersede an older
// one that still waits, so it is offered once that one is being built.
func (k *kindSlot) offerAll() error {
	var errs []error
	phases := k.phases()
	for i := range k.spec.Candidates {
		if i > 0 && k.phases()[k.spec.Candidates[i-1].Generation] == lifecycle.Waiting {
			break
		}
		c := &k.spec.Candidates[i]
		g := c.Generation
		o := swap.Candidate{Offer: offerOf(*c), Module: c.Module, Signature: c.Signature, Configuration: c.Configuration}
		o.Until = k.until(g)
		offered := o.Offer
		switch phase := phases[g]; {
		case phase > 0 && phase < lifecycle.Active && k.offered[g] != offered: // with another goal
		case c.Module != nil && k.offerable(g, phases):
		default:
			continue
		}
		c.Module = nil
		_, before := k.offered[g]
		o.Readmit = !before || phases[g] == lifecycle.Superseded // else it ended here, if it was ever present
		k.offered[g] = offered
		if err := k.slot.Offer(o); err != nil {
			k.refused[g] = err
			errs = append(errs, fmt.Errorf("slot %s: %w", k.kind, err))
		}
	}
	return errors.Join(errs...)
}

// rollBackUnwanted ends an active generation that the spec does not have, unless a
// newer one is stable: that one will take over, or has failed here, and then the
// active one is what the host fell back to.
func (k *kindSlot) rollBackUnwanted() {
	for {
		active := k.slot.Status().Active
		if active == lifecycle.Native || k.wanted(active) != nil {
			return
		}
		for _, c := range k.spec.Candidates {
			if c.Stable && c.Generation > active {
				return
			}
		}
		k.slot.RollBack(active, "not part of the desired state any more")
	}
}

// until returns when the statement of a generation expires; 0 for never.
func (k *kindSlot) until(g lifecycle.Generation) policies.Micros {
	a := k.about[g]
	if a == nil || a.notAfter == 0 {
		return 0
	}
	return policies.Micros(a.notAfter+1) * policies.Second
}

// offerOf returns the offer of a candidate, without its end.
func offerOf(c lifecycle.Candidate) promotion.Offer {
	return promotion.Offer{Generation: c.Generation, Goal: c.Goal, Permille: c.Permille, Scope: c.Scope, Stable: c.Stable}
}

// slotKind returns the slot of an ABI kind.
func slotKind(k abi.Kind) lifecycle.Kind { return lifecycle.Kind(k.String()) }

// slotOf returns the slot of a kind, nil when the host has none.
func (s *Slots) slotOf(kind lifecycle.Kind) *kindSlot {
	k, ok := abi.ParseKind(string(kind))
	if !ok {
		return nil
	}
	return s.slots[k]
}

func clipReason(s string) string { return s[:min(len(s), maxReason)] }
