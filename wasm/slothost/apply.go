package slothost

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/internal/swap"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	mostModule    = 8 << 20 // bytes
	mostEnded     = 256     // generations that a want takes back
	mostReason    = 512     // bytes of a reason that are kept
	mostRemembers = 64      // generations that Status can name
)

// ErrNotWritten says that Config.File could not be written: the want may be applied
// again when it can.
var ErrNotWritten = errors.New("what is admitted could not be written down")

// Check says what is wrong with a want, without the modules' bytes: its form, the
// signatures of its statements, their kinds and configurations, and whether they
// are older than what this host has admitted. The error is deterministic: the same
// want is refused again. A candidate that expires is not: it ends as a rejected one,
// and what the fleet runs beside it goes on.
func (s *Set) Check(w Want) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _, err := s.check(w)
	return err
}

// check returns a want's statements, and what its slot's history is with them.
func (s *Set) check(w Want) ([]sign.Statement, history, error) {
	if s.err != nil {
		return nil, history{}, s.err
	}
	if w.Kind >= abi.NumKinds || s.slots[w.Kind] == nil {
		return nil, history{}, fmt.Errorf("slot %s: this host has none", w.Kind)
	}
	k := s.slots[w.Kind]
	refuse := func(err error) ([]sign.Statement, history, error) {
		return nil, history{}, fmt.Errorf("slot %s: %w", w.Kind, err)
	}
	if len(w.RolledBack) > mostEnded {
		return refuse(fmt.Errorf("%d generations are rolled back, at most %d can be", len(w.RolledBack), mostEnded))
	}
	if err := ordered(w); err != nil {
		return refuse(err)
	}
	k.look() // what is active now may be what this want goes back to
	next := k.history.clone()
	for _, e := range w.RolledBack {
		next.rollBack(e.Generation)
	}
	var all []sign.Statement
	before, goesBack := s.previous(k, w, next)
	for _, c := range w.Candidates {
		st, err := s.statement(k, c)
		if err == nil {
			err = st.Configured(c.Configuration)
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
		next.want(append([]sign.Statement{before}, all...))
	} else {
		next.want(all)
	}
	return all, next, nil
}

// previous is the statement to go back to, where the host may.
func (s *Set) previous(k *kindSlot, w Want, h history) (st sign.Statement, ok bool) {
	f, err := sign.Decode(w.Previous)
	if err != nil || len(w.Candidates) == 0 || !w.Candidates[0].Proven || f.Statement.Generation >= w.Candidates[0].Generation {
		return st, false
	}
	st, err = s.statement(k, Candidate{Generation: f.Statement.Generation, Signature: w.Previous})
	return st, err == nil && h.admit(st) == nil
}

// ordered checks which candidates there can be, and their goals.
func ordered(w Want) error {
	for i, c := range w.Candidates {
		switch {
		case i > 1 || i == 1 && !w.Candidates[0].Proven:
			return errors.New("one proven candidate at most, then one newer at most")
		case i > 0 && c.Generation <= w.Candidates[i-1].Generation:
			return errors.New("candidates: list them in ascending order")
		case i > 0 && c.Proven:
			return fmt.Errorf("generation %d: two cannot be proven at once", c.Generation)
		case c.Proven && c.Goal != promotion.ToActive:
			return fmt.Errorf("generation %d is proven: its goal is to be active", c.Generation)
		}
		if err := c.offer().Offer.Check(w.Kind); err != nil {
			return fmt.Errorf("generation %d: %w", c.Generation, err)
		}
	}
	return nil
}

// statement returns the statement of a candidate, which the ring has signed for
// this kind.
func (s *Set) statement(k *kindSlot, c Candidate) (sign.Statement, error) {
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
	case c.SHA256 != sign.Digest{} && c.SHA256 != st.Digest:
		return st, fmt.Errorf("%s: the statement is about module %s, not %s", st.Name, st.Digest, c.SHA256)
	case c.Name != "" && c.Name != st.Name || c.Version != "" && c.Version != st.Version:
		return st, fmt.Errorf("the statement is about %s %s, not %.80q %.80q", st.Name, st.Version, c.Name, c.Version)
	}
	return st, nil
}

// Missing returns the digests of the modules that a want needs and that have to
// be fetched: those that are not loaded, not on their way, and not ended here.
// The want is one that Check passes.
func (s *Set) Missing(w Want) []sign.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, _, err := s.check(w)
	if err != nil {
		return nil
	}
	k := s.slots[w.Kind]
	states := k.states()
	var missing []sign.Digest
	for i, c := range w.Candidates {
		if c.Module == nil && k.offerable(c.Generation, states) && k.bytes(c.Generation) == nil && !slices.Contains(missing, all[i].Digest) {
			missing = append(missing, all[i].Digest)
		}
	}
	return missing
}

// Apply makes a want be: it offers what is new, changes goals, withdraws what is
// no longer wanted, and takes back what was rolled back. It may be called again
// with the same want, and refuses what Check refuses, changing nothing then. Of
// other errors only one that wraps ErrNotWritten goes away by itself.
// Candidates whose bytes are missing wait for a want that has them.
//
// An active generation that is not wanted any more decides on while the want has
// a newer one that is proven: until that takes over, and when that fails here.
// Otherwise it is rolled back at once.
func (s *Set) Apply(w Want) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, next, err := s.check(w)
	if err != nil {
		return err
	}
	k := s.slots[w.Kind]
	states := k.states()
	w.Candidates, w.RolledBack = slices.Clone(w.Candidates), slices.Clone(w.RolledBack)
	for i := range w.Candidates {
		c := &w.Candidates[i]
		switch {
		case !k.offerable(c.Generation, states):
			c.Module = nil
		case c.Module == nil:
			c.Module = k.bytes(c.Generation)
		case len(c.Module) > mostModule:
			return fmt.Errorf("slot %s: generation %d: the module has %d bytes, at most %d may be", w.Kind, c.Generation, len(c.Module), mostModule)
		case sign.Sum(c.Module) != all[i].Digest: // fetched wrongly: that is not the module's fault
			return fmt.Errorf("slot %s: generation %d: the bytes are not those of module %s", w.Kind, c.Generation, all[i].Digest)
		}
	}
	// First the file: after a crash, what was offered is remembered.
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
	k.want, k.refused = w, map[uint64]error{}
	k.proven.Store(len(w.Candidates) > 0 && w.Candidates[0].Proven)
	k.forget()
	return k.reconcile()
}

// RollBack takes back what a want says was rolled back, and nothing else of it: for
// a want that Check refuses, because what an operator takes back must not run on
// for the sake of what comes after it.
func (s *Set) RollBack(w Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.Kind >= abi.NumKinds || s.slots[w.Kind] == nil || s.err != nil || len(w.RolledBack) > mostEnded {
		return
	}
	k := s.slots[w.Kind]
	k.look()
	for _, e := range w.RolledBack {
		k.history.rollBack(e.Generation)
	}
	if err := s.save(); err != nil {
		s.config.Logger.Error("what was rolled back is not written down", "kind", w.Kind.String(), "err", err)
	}
	k.takeBack(w.RolledBack)
}

// takeBack ends generations that are there.
func (k *kindSlot) takeBack(all []Ended) {
	for _, e := range all {
		if state := k.states()[e.Generation]; state > 0 && state <= promotion.IsPrevious {
			k.slot.RollBack(promotion.Generation(e.Generation), reason(e.Reason))
		}
	}
}

// forget drops what is known of generations that nobody can ask for any more.
func (k *kindSlot) forget() {
	if len(k.about) < mostRemembers {
		return
	}
	states := k.states()
	for g := range k.about {
		if _, ok := states[g]; !ok && k.wanted(g) == nil {
			delete(k.about, g)
			delete(k.offered, g)
		}
	}
}

// states returns the lives of the slot by generation. A generation that ended and
// came back has its present state.
func (k *kindSlot) states() map[uint64]promotion.State {
	states := map[uint64]promotion.State{}
	for _, l := range k.slot.Status().Lives { // the present ones first, then the latest
		if _, ok := states[uint64(l.Generation)]; !ok {
			states[uint64(l.Generation)] = l.State
		}
	}
	return states
}

// offerable reports whether a generation is not there and might come.
func (k *kindSlot) offerable(g uint64, states map[uint64]promotion.State) bool {
	switch states[g] {
	case 0, promotion.Superseded, promotion.Gone:
		return k.refused[g] == nil
	}
	return false
}

// bytes returns the module of a generation that waits to be offered.
func (k *kindSlot) bytes(g uint64) []byte {
	if c := k.wanted(g); c != nil {
		return c.Module
	}
	return nil
}

func (k *kindSlot) wanted(g uint64) *Candidate {
	for i := range k.want.Candidates {
		if k.want.Candidates[i].Generation == g {
			return &k.want.Candidates[i]
		}
	}
	return nil
}

// reconcile brings the slot towards the want. The error says what the slot
// refuses, once. The set's lock is held.
func (k *kindSlot) reconcile() error {
	k.takeBack(k.want.RolledBack)
	for g, state := range k.states() {
		if state < promotion.IsActive && k.wanted(g) == nil {
			k.slot.Withdraw(promotion.Generation(g))
		}
	}
	err := k.offerAll()
	k.leaveUnwanted()
	return err
}

// offerAll offers the candidates in their order. A newer one would take the place
// of an older one that has not begun: it waits until that has.
func (k *kindSlot) offerAll() error {
	var errs []error
	states := k.states()
	for i := range k.want.Candidates {
		c := &k.want.Candidates[i]
		g := c.Generation
		o := c.offer()
		o.Until = k.until(g)
		offered := o.Offer
		switch state := states[g]; {
		case state > 0 && state < promotion.IsActive && k.offered[g] != offered: // with another goal
		case c.Module != nil && k.offerable(g, states):
		default:
			continue
		}
		c.Module = nil
		_, before := k.offered[g]
		o.Back = !before || states[g] == promotion.Superseded // else it ended here, if it was ever there
		k.offered[g] = offered
		if err := k.slot.Offer(o); err != nil {
			k.refused[g] = err
			errs = append(errs, fmt.Errorf("slot %s: %w", k.kind, err))
		}
		if k.states()[g] == promotion.Waiting {
			break
		}
	}
	return errors.Join(errs...)
}

// leaveUnwanted takes back an active generation that the want does not have,
// unless a newer one is proven: it will follow, or has failed here, and then the
// active one is what the host fell back to.
func (k *kindSlot) leaveUnwanted() {
	for {
		active := uint64(k.slot.Status().Route.Active)
		if active == 0 || k.wanted(active) != nil {
			return
		}
		for _, c := range k.want.Candidates {
			if c.Proven && c.Generation > active {
				return
			}
		}
		k.slot.RollBack(promotion.Generation(active), "the fleet does not want it any more")
	}
}

// until is when a generation expires, in the slot's time.
func (k *kindSlot) until(g uint64) policies.Micros {
	a := k.about[g]
	if a == nil || a.notAfter == 0 {
		return 0
	}
	at := policies.Micros(time.Unix(a.notAfter+1, 0).Sub(k.slot.Begin()) / time.Microsecond)
	return cmp.Or(at, -1)
}

func (c Candidate) offer() swap.Candidate {
	return swap.Candidate{Offer: promotion.Offer{Generation: promotion.Generation(c.Generation), Goal: c.Goal, Permille: c.Permille, Scope: c.Scope, Proven: c.Proven},
		Module: c.Module, Signature: c.Signature, Configuration: c.Configuration}
}

func reason(s string) string { return s[:min(len(s), mostReason)] }
