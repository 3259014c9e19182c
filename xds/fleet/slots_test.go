package fleet

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// TestSlotReportsOfRemovedReplicas checks that what a replica reported is kept while it is configured, and no longer:
// ids hold names of Pods, which never return.
func TestSlotReportsOfRemovedReplicas(t *testing.T) {
	f := &Fleet{replicas: []policies.Replica{{ID: "b"}, {ID: "a"}, {ID: "silent"}}, slotReports: map[policies.ReplicaID]policyslots.Report{}}
	for _, id := range []policies.ReplicaID{"b", "removed", "a"} {
		f.slotReports[id] = policyslots.Report{Node: string(id)}
	}
	got := f.SlotReports()
	if len(got) != 2 || got[0].Node != "a" || got[1].Node != "b" || len(f.slotReports) != 2 {
		t.Errorf("reports %+v, kept %v", got, f.slotReports)
	}
}
