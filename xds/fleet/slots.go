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
// configured replica reported, sorted by replica. It forgets those of other replicas.
func (f *Fleet) SlotReports() []policyslots.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.slotReports, func(id policies.ReplicaID, _ policyslots.Report) bool {
		return !slices.ContainsFunc(f.replicas, func(r policies.Replica) bool { return r.ID == id })
	})
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
