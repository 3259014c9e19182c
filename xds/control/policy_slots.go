package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/internal/wakeup"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/auditlog"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Slots are the policy slots of this control plane itself.
type Slots interface {
	// Apply sets what a slot should run. It is called with the message that hosts get,
	// for each slot that Status lists, by one goroutine, and does not wait for fetches
	// or builds. The error means that the slot is refused, and is displayed.
	Apply(*api.SlotSpec) error
	// Status returns the state of every slot of this control plane. Any
	// goroutine may call it.
	Status() []*api.SlotStatus
}

const (
	// evaluateInterval is how often candidates are evaluated.
	evaluateInterval = time.Second
	// moduleTimeout bounds how long slots wait for a store that hangs: hosts fetch what it
	// then lacks later.
	moduleTimeout = 3 * time.Second
)

// slotManager publishes the stored slots to the hosts and to this control plane's own
// slots. While this control plane plans, it also stores the results of candidates.
type slotManager struct {
	control *Control
	log     *slog.Logger
	node    string // name of this control plane in reports
	wakeup  chan struct{}

	mu        sync.Mutex
	list      []policyslots.Slot                // as stored
	named     map[lifecycle.Digest]bool         // by list
	refused   map[string]string                 // by this control plane's own slots
	published map[lifecycle.Kind]*publishedSlot // by kind

	interval  time.Duration // evaluateInterval; shorter in tests
	startedAt time.Time     // owned by run
	audited   hostRefusals  // owned by run
}

// publishedSlot is a slot in the form that hosts get.
type publishedSlot struct {
	resource *resources.Resource
	message  *api.SlotSpec
}

func newSlotManager(c *Control) *slotManager {
	k := &slotManager{
		control: c, log: c.log, node: nodePrefix + c.cfg.Name, wakeup: make(chan struct{}, 1),
		refused: make(map[string]string), audited: make(hostRefusals), published: make(map[lifecycle.Kind]*publishedSlot), interval: evaluateInterval,
	}
	return k
}

// setStored applies the stored slots. It is called by the fleet's loop and does not
// block.
func (k *slotManager) setStored(slots []policyslots.Slot) {
	k.mu.Lock()
	k.list, k.named = slots, make(map[lifecycle.Digest]bool)
	for _, s := range slots {
		for _, d := range s.Digests() {
			k.named[d] = true
		}
	}
	k.mu.Unlock()
	wakeup.Send(k.wakeup)
}

// stored returns the slots, which must not be changed.
func (k *slotManager) stored() []policyslots.Slot {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.list
}

// isNamed reports whether a slot names a module.
func (k *slotManager) isNamed(d lifecycle.Digest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.named[d]
}

// run publishes slots and evaluates candidates until ctx ends.
func (k *slotManager) run(ctx context.Context) error {
	k.startedAt = time.Now()
	judge := time.NewTicker(k.interval)
	defer judge.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wakeup:
			k.publish(ctx)
		case now := <-judge.C:
			k.evaluateCandidates(ctx, now)
			if k.control.cfg.Audit != nil {
				k.audited.audit(k.control.cfg.Audit, k.control.observe().status.Policies)
			}
		}
	}
}

// publish renders the slots for the hosts and passes those that changed to this
// control plane's own slots.
func (k *slotManager) publish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, moduleTimeout)
	defer cancel()
	next := make(map[lifecycle.Kind]*publishedSlot)
	var all []*resources.Resource
	for _, s := range k.stored() {
		p, err := k.render(ctx, s)
		if err != nil {
			k.log.Error("policy slot not published; hosts keep the published one", "slot", s.Kind, "error", err)
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

// render renders a slot.
func (k *slotManager) render(ctx context.Context, s policyslots.Slot) (*publishedSlot, error) {
	w := s.Spec(func(d lifecycle.Digest) []byte {
		code, err := k.control.cfg.Store.Module(ctx, d)
		if err != nil {
			// Hosts retry until this control plane or another one has it.
			k.log.Warn("module of a policy slot not found", "slot", s.Kind, "sha256", d.String(), "error", err)
			return nil
		}
		return code
	})
	r, err := resources.RenderPolicySlot(w)
	return &publishedSlot{r, policyslots.Encode(w)}, err
}

// applyToOwn passes the changed slots to this control plane's own.
func (k *slotManager) applyToOwn(next map[lifecycle.Kind]*publishedSlot) {
	if k.control.cfg.Slots == nil {
		return
	}
	for _, s := range k.control.cfg.Slots.Status() {
		p, before := next[lifecycle.Kind(s.GetKind())], k.published[lifecycle.Kind(s.GetKind())]
		if p == nil || before != nil && before.resource.Version == p.resource.Version {
			continue
		}
		text := ""
		if err := k.control.cfg.Slots.Apply(p.message); err != nil {
			text = err.Error()
			k.log.Warn("own policy slot refused its configuration", "slot", s.GetKind(), "error", err)
		}
		k.mu.Lock()
		k.refused[s.GetKind()] = text
		k.mu.Unlock()
	}
}

// reports returns the reports of the hosts about their slots: the replicas, this
// control plane, and the others of its store. The age of a report in a note counts from when this
// control plane first read it, because clocks differ between hosts.
func (k *slotManager) reports(now time.Time) []policyslots.Report {
	out := k.control.fleet.SlotReports()
	if k.control.cfg.Slots == nil {
		return out
	}
	own, _ := policyslots.DecodeStatuses(k.ownStatus())
	out = append(out, policyslots.Report{Node: k.node, At: now, Statuses: own})
	return append(out, k.control.planes.slotReports()...)
}

// ownStatus returns the state of this control plane's own slots.
func (k *slotManager) ownStatus() []*api.SlotStatus {
	own := k.control.cfg.Slots.Status()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range own {
		if s.GetRefused() == "" {
			s.Refused = cleantext.Printable(k.refused[s.GetKind()], policyslots.MaxReason)
		}
	}
	return own
}

// evaluateCandidates stores the results of candidates and stable policies while this
// control plane plans.
func (k *slotManager) evaluateCandidates(ctx context.Context, now time.Time) {
	s := k.control.fleet.Snapshot()
	slots := k.stored()
	if s == nil || !s.Leadership.Leading || !inUse(slots) {
		return
	}
	reports := k.reports(now)
	for _, slot := range slots {
		k.revokeBroken(ctx, now, slot, reports)
		verdict, reason := slot.Judge(now, reports)
		if verdict == policyslots.Wait || verdict == policyslots.Stable && !k.allReported(now, s, reports) {
			continue
		}
		generation := slot.Candidate.Generation
		change := func(s policyslots.Slot) (policyslots.Slot, error) { return s.Promote(generation) }
		if verdict == policyslots.Failed {
			change = func(s policyslots.Slot) (policyslots.Slot, error) {
				return s.Withdraw(storedTime(now), generation, reason, k.control.cfg.Name)
			}
		}
		switch err := k.change(ctx, []lifecycle.Kind{slot.Kind}, change); {
		case err == nil && verdict == policyslots.Failed:
			k.auditPromotion(slot.Kind, generation, auditlog.Done, "rolled back: "+reason)
			k.log.Warn("policy rolled back in the whole fleet", "slot", slot.Kind, "generation", generation, "reason", reason)
		case err == nil:
			k.auditPromotion(slot.Kind, generation, auditlog.Done, "became stable")
			k.log.Info("policy became stable", "slot", slot.Kind, "generation", generation)
		case errors.Is(err, policyslots.ErrNoCandidate), errors.Is(err, policyslots.ErrChanged): // another change came first
		case ctx.Err() == nil:
			k.log.Warn("outcome of a policy candidate not stored; retrying", "slot", slot.Kind, "error", err)
		}
	}
}

// revokeBroken rolls a stable policy back after a host has found that it does
// not work.
func (k *slotManager) revokeBroken(ctx context.Context, now time.Time, slot policyslots.Slot, reports []policyslots.Report) {
	reason := slot.Broken(reports)
	if reason == "" {
		return
	}
	generation := slot.Stable.Generation
	err := k.change(ctx, []lifecycle.Kind{slot.Kind}, func(s policyslots.Slot) (policyslots.Slot, error) {
		return s.Revoke(storedTime(now), generation, reason, k.control.cfg.Name)
	})
	switch {
	case err == nil:
		k.auditPromotion(slot.Kind, generation, auditlog.Done, "rolled back after it was stable: "+reason)
		k.log.Error("stable policy rolled back in the whole fleet", "slot", slot.Kind, "generation", generation, "reason", reason)
	case errors.Is(err, policyslots.ErrNative), errors.Is(err, policyslots.ErrChanged): // another change came first
	case ctx.Err() == nil:
		k.log.Warn("rollback of a failed policy not stored; retrying", "slot", slot.Kind, "error", err)
	}
}

// auditPromotion records what the hosts' results made of a module.
func (k *slotManager) auditPromotion(kind lifecycle.Kind, generation lifecycle.Generation, outcome auditlog.Outcome, reason string) {
	k.control.cfg.Audit.Record(auditlog.Record{Action: auditlog.Promotion, Object: fmt.Sprintf("slot=%s generation=%d", kind, generation), Outcome: outcome, Reason: reason})
}

func inUse(slots []policyslots.Slot) bool {
	for _, s := range slots {
		if s.Candidate != nil || s.Stable != nil {
			return true
		}
	}
	return false
}

// allReported reports whether every replica has reported to this control plane or had
// enough time to, so that a control plane that has just started does not decide on the
// first reports alone.
func (k *slotManager) allReported(now time.Time, s *fleet.Snapshot, reports []policyslots.Report) bool {
	if now.Sub(k.startedAt) > policyslots.FreshFor {
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

// change stores a change of some slots, all or none.
func (k *slotManager) change(ctx context.Context, kinds []lifecycle.Kind, change func(policyslots.Slot) (policyslots.Slot, error)) error {
	return k.control.fleet.Order(ctx, fleetstate.ChangeSlots{Change: func(list []policyslots.Slot) ([]policyslots.Slot, error) {
		for _, kind := range kinds {
			s, err := change(policyslots.Find(list, kind))
			if err == nil {
				err = s.Validate()
			}
			if err != nil {
				return nil, err
			}
			list = policyslots.Replace(list, s)
		}
		return list, nil
	}})
}

// storedTime returns a time in the form in which it is stored.
func storedTime(now time.Time) time.Time { return now.UTC().Round(0) }

// nackedSlots returns the NACKs of slots that hosts sent by xDS, by node and
// kind.
func nackedSlots(nodes []Node) map[string]map[lifecycle.Kind]string {
	out := make(map[string]map[lifecycle.Kind]string)
	for _, n := range nodes {
		for kind, r := range n.Slots {
			if r.Refused == "" || !n.Connected {
				continue
			}
			if out[n.ID] == nil {
				out[n.ID] = make(map[lifecycle.Kind]string)
			}
			out[n.ID][kind] = r.Refused
		}
	}
	return out
}
