package fleet

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// SlotReports returns the last state of the policy slots that the migrator of each
// configured replica reported, sorted by replica. It forgets what other replicas reported.
func (f *Fleet) SlotReports() []policyslots.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	configured := make(map[policies.ReplicaID]bool, len(f.replicas))
	for _, r := range f.replicas {
		configured[r.ID] = true
	}
	left := func(id policies.ReplicaID) bool { return !configured[id] }
	maps.DeleteFunc(f.slotReports, func(id policies.ReplicaID, _ policyslots.Report) bool { return left(id) })
	f.migrations.Forget(left)
	out := slices.Collect(maps.Values(f.slotReports))
	slices.SortFunc(out, func(a, b policyslots.Report) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// announceSlots calls Config.OnSlots if the stored slots have changed. It is called
// only by the loop.
func (f *Fleet) announceSlots() {
	if f.cfg.OnSlots == nil {
		return
	}
	// Keep equal slots, too: comparing a slice with itself costs a report nothing.
	unchanged := f.slotsAnnounced && reflect.DeepEqual(f.slots, f.state.object.Slots)
	if f.slots, f.slotsAnnounced = f.state.object.Slots, true; !unchanged {
		f.cfg.OnSlots(f.slots)
	}
}
