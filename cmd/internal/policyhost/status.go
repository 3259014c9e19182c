package policyhost

import (
	"cmp"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/slothost"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// maxLives is what a report may hold of one slot; see SlotStatus.lives.
const maxLives = 16

// Status is the state of the slots in the words of reports. The messages are the
// caller's.
func (n *Node) Status() []*api.SlotStatus {
	all := n.slots.Status()
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]*api.SlotStatus, len(all))
	for i, s := range all {
		out[i] = told(s)
		if k, ok := KindOf(s.Kind); ok {
			out[i].Refused = cmp.Or(n.refused[k], s.Error)
			n.tellAwaited(out[i], n.wants[k])
		}
	}
	return out
}

// Fetching is the state of a generation whose module's bytes are not here yet; its
// reason is why the last try to have them failed.
const Fetching = "fetching"

// tellAwaited adds the generations that wait for their bytes. The node is locked.
func (n *Node) tellAwaited(t *api.SlotStatus, w slothost.Want) {
	for _, c := range w.Candidates {
		why, awaited := n.awaited[c.SHA256]
		known := slices.ContainsFunc(t.Modules, func(l *api.ModuleStatus) bool { return l.GetGeneration() == c.Generation })
		if c.Module != nil || !awaited || known || len(t.Modules) == maxLives {
			continue
		}
		t.Modules = append(t.Modules, &api.ModuleStatus{
			Generation: c.Generation, State: Fetching, Goal: c.Goal.String(), Permille: uint32(c.Permille), Sha256: c.SHA256[:], Reason: why,
		})
	}
	sortLives(t)
}

// told is a slot in the words of reports. What has decided nothing yet tells of the
// recorded calls that it answered.
func told(s slothost.Status) *api.SlotStatus {
	t := &api.SlotStatus{
		Kind: s.Kind, Active: s.Active, Candidate: s.Candidate, Permille: uint32(s.Permille), Scope: s.Scope, Floor: s.Floor,
	}
	for _, l := range s.Lives[:min(len(s.Lives), maxLives)] {
		digest, _ := hex.DecodeString(l.SHA256)
		t.Modules = append(t.Modules, &api.ModuleStatus{
			Generation: l.Generation, State: l.State, Goal: l.Goal, Permille: uint32(l.Permille), Name: l.Name, Version: l.Version, Sha256: digest,
			Reason: reason(l), Calls: cmp.Or(l.Calls, l.Figures.Calls), Faults: cmp.Or(l.Faults, l.Figures.Faults),
			Differ: l.Figures.Differ, Worse: l.Figures.Worse, Compared: l.Figures.Compared, Descheduled: l.Starved, SinceUnixMicros: l.Since, Reached: reached(l),
		})
	}
	// The first ones are those that are there, and then the last that ended.
	sortLives(t)
	return t
}

// reason is a life's, and begins with what it has shown that speaks against it.
func reason(l slothost.Life) string {
	switch {
	case l.Held != "":
		return strings.TrimSuffix(policyslots.Held+l.Held+"; "+l.Reason, "; ")
	case l.Doubt != "":
		return strings.TrimSuffix(policyslots.Doubted+l.Doubt+"; "+l.Reason, "; ")
	}
	return l.Reason
}

func sortLives(t *api.SlotStatus) {
	slices.SortFunc(t.Modules, func(a, b *api.ModuleStatus) int { return cmp.Compare(a.Generation, b.Generation) })
}

// reached is the furthest stage that a generation is known to have come to, "" if
// it was never warm. What failed while it was being built has answered nothing.
func reached(l slothost.Life) string {
	switch l.State {
	case promotion.IsWarm.String(), promotion.InShadow.String(), promotion.InCanary.String(), promotion.IsActive.String():
		return l.State
	case promotion.IsPrevious.String():
		return promotion.IsActive.String()
	}
	if l.Calls > 0 || l.Figures.Calls > 0 {
		return promotion.InShadow.String()
	}
	return ""
}

// KindOf is the kind of that name that a slot can have.
func KindOf(name string) (abi.Kind, bool) {
	for k := abi.Configure + 1; k < abi.NumKinds; k++ {
		if k.String() == name {
			return k, true
		}
	}
	return 0, false
}
