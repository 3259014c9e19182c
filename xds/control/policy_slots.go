package control

import (
	"context"
	"errors"
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
	// evaluateInterval is how often candidates are looked at.
	evaluateInterval = time.Second
	// sweepInterval is how often modules that nobody names are looked for, and
	// sweepAfter how old they are when they are removed: whoever pushes one puts the
	// bytes before the name.
	sweepInterval = time.Hour
	sweepMinAge   = time.Hour
)

// slotManager shows hosts what the stored slots say, tells this control plane's own
// slots, and says what became of candidates when it plans.
type slotManager struct {
	control *Control
	log     *slog.Logger
	node    string // of this control plane, in reports
	wakeup  chan struct{}

	mu        sync.Mutex
	list      []policyslots.Slot          // as stored
	named     map[policyslots.Digest]bool // by them
	refused   map[string]string           // by this control plane's own slots
	published map[string]*publishedSlot   // by kind

	peers     *slotPeers // nil: there are none to be heard
	startedAt time.Time  // owned by run
}

// publishedSlot is a slot as hosts get it.
type publishedSlot struct {
	resource *resources.Resource
	message  *api.PolicySlot
}

func newSlotManager(c *Control) *slotManager {
	k := &slotManager{
		control: c, log: c.log, node: nodePrefix + c.cfg.Name, wakeup: make(chan struct{}, 1),
		refused: make(map[string]string), published: make(map[string]*publishedSlot),
	}
	if c.cfg.Notes != nil && c.cfg.Shared && c.cfg.Slots != nil {
		k.peers = newSlotPeers(c.cfg.Notes, k.node, c.log)
	}
	return k
}

// setStored takes in what is stored. It is called by the fleet's loop and returns at
// once.
func (k *slotManager) setStored(slots []policyslots.Slot) {
	k.mu.Lock()
	k.list, k.named = slots, make(map[policyslots.Digest]bool)
	for _, s := range slots {
		for _, d := range s.Digests() {
			k.named[d] = true
		}
	}
	k.mu.Unlock()
	select {
	case k.wakeup <- struct{}{}:
	default:
	}
}

// stored returns the slots, which are not to be changed.
func (k *slotManager) stored() []policyslots.Slot {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.list
}

// isNamed reports whether a slot names a module.
func (k *slotManager) isNamed(d policyslots.Digest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.named[d]
}

// run shows and judges until ctx ends.
func (k *slotManager) run(ctx context.Context) error {
	k.startedAt = time.Now()
	judge, sweep := time.NewTicker(evaluateInterval), time.NewTicker(sweepInterval)
	defer judge.Stop()
	defer sweep.Stop()
	if k.peers != nil {
		k.peers.exchange(k.startedAt, k.ownStatus())
		defer k.peers.removeOwn()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wakeup:
			k.publish()
			k.sweep()
		case now := <-judge.C:
			if k.peers != nil {
				k.peers.exchange(now, k.ownStatus())
			}
			k.evaluateCandidates(ctx, now)
		case <-sweep.C:
			k.sweep()
		}
	}
}

// publish renders the slots that have changed for the hosts, and tells this control
// plane's own.
func (k *slotManager) publish() {
	next := make(map[string]*publishedSlot)
	var all []*resources.Resource
	for _, s := range k.stored() {
		p, err := k.render(s)
		if err != nil {
			k.log.Error("policy slot not shown; hosts keep what they have", "slot", s.Kind, "error", err)
			if p = k.published[s.Kind]; p == nil {
				continue
			}
		}
		next[s.Kind] = p
		all = append(all, p.resource)
	}
	k.control.cache.setSlots(all)
	k.applyToOwn(next)
	k.published = next
}

// render makes the resource of a slot.
func (k *slotManager) render(s policyslots.Slot) (*publishedSlot, error) {
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
	return &publishedSlot{r, m}, err
}

// applyToOwn tells this control plane's slots what has changed for them.
func (k *slotManager) applyToOwn(next map[string]*publishedSlot) {
	if k.control.cfg.Slots == nil {
		return
	}
	for _, s := range k.control.cfg.Slots.Status() {
		p, before := next[s.GetKind()], k.published[s.GetKind()]
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
func (k *slotManager) sweep() {
	k.mu.Lock()
	keep := make(map[store.Digest]bool, len(k.named))
	for d := range k.named {
		keep[store.Digest(d)] = true
	}
	k.mu.Unlock()
	if err := k.control.cfg.Modules.Sweep(keep, time.Now().Add(-sweepMinAge)); err != nil {
		k.log.Warn("modules that nobody names are not removed", "error", err)
	}
}

// reports are what the hosts say of their slots: the replicas', this control plane,
// and the others of its store.
func (k *slotManager) reports(now time.Time) []policyslots.Report {
	out := k.control.fleet.Hosts()
	if k.control.cfg.Slots == nil {
		return out
	}
	own, _ := policyslots.ReadStatuses(k.ownStatus())
	out = append(out, policyslots.Report{Node: k.node, At: now, Statuses: own})
	if k.peers != nil {
		out = append(out, k.peers.reports()...)
	}
	return out
}

// ownStatus is the state of this control plane's own slots.
func (k *slotManager) ownStatus() []*api.SlotStatus {
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

// evaluateCandidates writes down what became of candidates, and of what the fleet runs, where
// this control plane plans.
func (k *slotManager) evaluateCandidates(ctx context.Context, now time.Time) {
	s := k.control.fleet.Snapshot()
	slots := k.stored()
	if s == nil || !s.Planner.Leads || !inUse(slots) {
		return
	}
	reports := k.reports(now)
	for _, slot := range slots {
		k.revokeBroken(ctx, now, slot, reports)
		verdict, why := slot.Judge(now, reports)
		if verdict == policyslots.Wait || verdict == policyslots.Settled && !k.allReported(now, s, reports) {
			continue
		}
		generation := slot.Candidate.Generation
		change := func(s policyslots.Slot) (policyslots.Slot, error) { return s.Settle(generation) }
		if verdict == policyslots.Failed {
			change = func(s policyslots.Slot) (policyslots.Slot, error) {
				return s.Withdraw(storedTime(now), generation, why, k.control.cfg.Name)
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

// revokeBroken takes back what the fleet runs where a host has found that it cannot.
func (k *slotManager) revokeBroken(ctx context.Context, now time.Time, slot policyslots.Slot, reports []policyslots.Report) {
	why := slot.Broken(reports)
	if why == "" {
		return
	}
	generation := slot.Proven.Generation
	err := k.change(ctx, []string{slot.Kind}, func(s policyslots.Slot) (policyslots.Slot, error) {
		return s.Revoke(storedTime(now), generation, why, k.control.cfg.Name)
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

// allReported reports whether every replica has reported here, or had the time to: a
// control plane that starts must not take the first for all.
func (k *slotManager) allReported(now time.Time, s *fleet.Snapshot, reports []policyslots.Report) bool {
	if now.Sub(k.startedAt) > policyslots.Fresh {
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
func (k *slotManager) change(ctx context.Context, kinds []string, change func(policyslots.Slot) (policyslots.Slot, error)) error {
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

// storedTime is a time as it is stored.
func storedTime(now time.Time) time.Time { return now.UTC().Round(0) }

// nackedSlots are what hosts answered about slots by xDS and do not say themselves,
// by node and kind.
func (k *slotManager) nackedSlots() map[string]map[string]string {
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
