package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Slots are the policy slots of this control plane itself.
type Slots interface {
	// Want says what a slot should run. It is called with what hosts are sent, for
	// each slot that Status lists, by one goroutine, and does not wait for what is
	// to be fetched or built. The error is a refusal, and is shown.
	Want(*api.PolicySlot) error
	// Status is the state of every slot that this control plane has. Any goroutine
	// may call it.
	Status() []*api.SlotStatus
}

const (
	// judgeEvery is how often candidates are looked at.
	judgeEvery = time.Second
	// sweepEvery is how often modules that nobody names are looked for, and
	// sweepAfter how old they are when they are removed: whoever pushes one puts the
	// bytes before the name.
	sweepEvery = time.Hour
	sweepAfter = time.Hour
)

// keeper shows hosts what the stored slots say, tells this control plane's own
// slots, and says what became of candidates when it plans.
type keeper struct {
	control *Control
	log     *slog.Logger
	node    string // of this control plane, in reports
	news    chan struct{}

	mu      sync.Mutex
	slots   []policyslots.Slot          // as stored
	named   map[policyslots.Digest]bool // by them
	refused map[string]string           // by this control plane's own slots
	shown   map[string]*shownPolicy     // by kind

	peers *peers    // nil: there are none to be heard
	began time.Time // owned by run
}

// shownPolicy is a slot as hosts get it.
type shownPolicy struct {
	resource *resources.Resource
	message  *api.PolicySlot
}

func newKeeper(c *Control) *keeper {
	k := &keeper{
		control: c, log: c.log, node: nodePrefix + c.cfg.Name, news: make(chan struct{}, 1),
		refused: make(map[string]string), shown: make(map[string]*shownPolicy),
	}
	if c.cfg.Notes != nil && c.cfg.Shared && c.cfg.Slots != nil {
		k.peers = newPeers(c.cfg.Notes, k.node, c.log)
	}
	return k
}

// tell takes in what is stored. It is called by the fleet's loop and returns at
// once.
func (k *keeper) tell(slots []policyslots.Slot) {
	k.mu.Lock()
	k.slots, k.named = slots, make(map[policyslots.Digest]bool)
	for _, s := range slots {
		for _, d := range s.Digests() {
			k.named[d] = true
		}
	}
	k.mu.Unlock()
	select {
	case k.news <- struct{}{}:
	default:
	}
}

// stored returns the slots, which are not to be changed.
func (k *keeper) stored() []policyslots.Slot {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.slots
}

// names reports whether a slot names a module.
func (k *keeper) names(d policyslots.Digest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.named[d]
}

// run shows and judges until ctx ends.
func (k *keeper) run(ctx context.Context) error {
	k.began = time.Now()
	judge, sweep := time.NewTicker(judgeEvery), time.NewTicker(sweepEvery)
	defer judge.Stop()
	defer sweep.Stop()
	if k.peers != nil {
		k.peers.exchange(k.began, k.ownStatus())
		defer k.peers.leave()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.news:
			k.show()
			k.sweep()
		case now := <-judge.C:
			if k.peers != nil {
				k.peers.exchange(now, k.ownStatus())
			}
			k.judge(ctx, now)
		case <-sweep.C:
			k.sweep()
		}
	}
}

// show renders the slots that have changed for the hosts, and tells this control
// plane's own.
func (k *keeper) show() {
	next := make(map[string]*shownPolicy)
	var all []*resources.Resource
	for _, s := range k.stored() {
		p, err := k.render(s)
		if err != nil {
			k.log.Error("policy slot not shown; hosts keep what they have", "slot", s.Kind, "error", err)
			if p = k.shown[s.Kind]; p == nil {
				continue
			}
		}
		next[s.Kind] = p
		all = append(all, p.resource)
	}
	k.control.cache.setSlots(all)
	k.own(next)
	k.shown = next
}

// render makes the resource of a slot.
func (k *keeper) render(s policyslots.Slot) (*shownPolicy, error) {
	w := s.Want(func(d policyslots.Digest) []byte {
		code, err := k.control.cfg.Modules.Get(d)
		if err != nil {
			// Hosts ask for it until it is here, or where it is.
			k.log.Warn("module of a policy slot is not here", "slot", s.Kind, "sha256", d.String(), "error", err)
			return nil
		}
		return code
	})
	m, err := w.Message()
	if err != nil {
		return nil, err
	}
	r, err := resources.Slot(w)
	return &shownPolicy{r, m}, err
}

// own tells this control plane's slots what has changed for them.
func (k *keeper) own(next map[string]*shownPolicy) {
	if k.control.cfg.Slots == nil {
		return
	}
	for _, s := range k.control.cfg.Slots.Status() {
		p, before := next[s.GetKind()], k.shown[s.GetKind()]
		if p == nil || before != nil && before.resource.Version == p.resource.Version {
			continue
		}
		text := ""
		if err := k.control.cfg.Slots.Want(p.message); err != nil {
			text = err.Error()
			k.log.Warn("this control plane does not take a policy", "slot", s.GetKind(), "error", err)
		}
		k.mu.Lock()
		k.refused[s.GetKind()] = text
		k.mu.Unlock()
	}
}

// sweep removes the modules that no slot names any more.
func (k *keeper) sweep() {
	k.mu.Lock()
	keep := make(map[store.Digest]bool, len(k.named))
	for d := range k.named {
		keep[store.Digest(d)] = true
	}
	k.mu.Unlock()
	if err := k.control.cfg.Modules.Sweep(keep, time.Now().Add(-sweepAfter)); err != nil {
		k.log.Warn("modules that nobody names are not removed", "error", err)
	}
}

// reports are what the hosts say of their slots: the replicas', this control plane,
// and the others of its store.
func (k *keeper) reports(now time.Time) []policyslots.Report {
	out := k.control.fleet.Hosts()
	if k.control.cfg.Slots == nil {
		return out
	}
	own, _ := policyslots.ReadStatuses(k.ownStatus())
	out = append(out, policyslots.Report{Node: k.node, At: now, Statuses: own})
	if k.peers != nil {
		out = append(out, k.peers.heard()...)
	}
	return out
}

// ownStatus is the state of this control plane's own slots.
func (k *keeper) ownStatus() []*api.SlotStatus {
	own := k.control.cfg.Slots.Status()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range own {
		if s.GetRefused() == "" {
			s.Refused = policyslots.Clip(k.refused[s.GetKind()], policyslots.MaxReason)
		}
	}
	return own
}

// judge writes down what became of candidates, and of what the fleet runs, where
// this control plane plans.
func (k *keeper) judge(ctx context.Context, now time.Time) {
	s := k.control.fleet.Snapshot()
	slots := k.stored()
	if s == nil || !s.Planner.Leads || !inUse(slots) {
		return
	}
	reports := k.reports(now)
	for _, slot := range slots {
		k.mend(ctx, now, slot, reports)
		verdict, why := slot.Judge(now, reports)
		if verdict == policyslots.Wait || verdict == policyslots.Settled && !k.heardAll(now, s, reports) {
			continue
		}
		generation := slot.Candidate.Generation
		change := func(s policyslots.Slot) (policyslots.Slot, error) { return s.Settle(generation) }
		if verdict == policyslots.Failed {
			change = func(s policyslots.Slot) (policyslots.Slot, error) {
				return s.Withdraw(moment(now), generation, why, k.control.cfg.Name)
			}
		}
		switch err := k.change(ctx, []string{slot.Kind}, change); {
		case err == nil && verdict == policyslots.Failed:
			k.log.Warn("policy taken back in the whole fleet", "slot", slot.Kind, "generation", generation, "why", why)
		case err == nil:
			k.log.Info("policy is proven", "slot", slot.Kind, "generation", generation)
		case errors.Is(err, policyslots.ErrNoCandidate), errors.Is(err, policyslots.ErrOther): // somebody was faster
		case ctx.Err() == nil:
			k.log.Warn("what became of a policy is not stored; it is tried again", "slot", slot.Kind, "error", err)
		}
	}
}

// mend takes back what the fleet runs where a host has found that it cannot.
func (k *keeper) mend(ctx context.Context, now time.Time, slot policyslots.Slot, reports []policyslots.Report) {
	why := slot.Broken(reports)
	if why == "" {
		return
	}
	generation := slot.Proven.Generation
	err := k.change(ctx, []string{slot.Kind}, func(s policyslots.Slot) (policyslots.Slot, error) {
		return s.Revoke(moment(now), generation, why, k.control.cfg.Name)
	})
	switch {
	case err == nil:
		k.log.Error("the policy that the fleet runs is taken back", "slot", slot.Kind, "generation", generation, "why", why)
	case errors.Is(err, policyslots.ErrNative), errors.Is(err, policyslots.ErrOther): // somebody was faster
	case ctx.Err() == nil:
		k.log.Warn("a policy that failed is not taken back yet; it is tried again", "slot", slot.Kind, "error", err)
	}
}

func inUse(slots []policyslots.Slot) bool {
	for _, s := range slots {
		if s.Candidate != nil || s.Proven != nil {
			return true
		}
	}
	return false
}

// heardAll reports whether every replica has reported here, or had the time to: a
// control plane that starts must not take the first for all.
func (k *keeper) heardAll(now time.Time, s *fleet.Snapshot, reports []policyslots.Report) bool {
	if now.Sub(k.began) > policyslots.Fresh {
		return true
	}
	heard := make(map[string]bool, len(reports))
	for _, r := range reports {
		heard[r.Node] = true
	}
	for _, m := range s.Models {
		for _, r := range m.Replicas {
			if !heard[string(r.ID)] {
				return false
			}
		}
	}
	return true
}

// change stores what becomes of some slots, all or none.
func (k *keeper) change(ctx context.Context, kinds []string, change func(policyslots.Slot) (policyslots.Slot, error)) error {
	return k.control.fleet.Policies(ctx, fleet.Policies{Change: func(list []policyslots.Slot) ([]policyslots.Slot, error) {
		for _, kind := range kinds {
			s, err := change(policyslots.Of(list, kind))
			if err == nil {
				err = s.Validate()
			}
			if err != nil {
				return nil, err
			}
			list = policyslots.With(list, s)
		}
		return list, nil
	}})
}

// moment is a time as it is stored.
func moment(now time.Time) time.Time { return now.UTC().Round(0) }

// refusals are what hosts answered about slots by xDS and do not say themselves,
// by node and kind.
func (k *keeper) refusals() map[string]map[string]string {
	out := make(map[string]map[string]string)
	for _, n := range k.control.publisher.Status().Nodes {
		for kind, r := range n.Slots {
			if r.Refused == "" || !n.Connected {
				continue
			}
			if out[n.ID] == nil {
				out[n.ID] = make(map[string]string)
			}
			out[n.ID][kind] = r.Refused
		}
	}
	return out
}

// setSlots shows the policy slots to all groups, at once.
func (f *firstSet) setSlots(slots []*resources.Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slots = slots
	for group, set := range f.sets {
		f.Cache.Set(group, set.Plus(slots...))
	}
}

// errOff says that nobody decides which modules may come.
var errOff = errors.New("policies are off: give the control plane the keys that modules must be signed with (policies.keys)")

// inadmissible is why a module may not come, or go so far.
type inadmissible struct{ error }

func (e inadmissible) Unwrap() error { return e.error }

func refuse(slot string, err error) error { return inadmissible{fmt.Errorf("slot %s: %w", slot, err)} }
