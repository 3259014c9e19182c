package inventory

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// TestHealthTracker records reports step by step and checks the results.
func TestHealthTracker(t *testing.T) {
	type step struct {
		xid           uint64
		reading       *topology.Health
		problem, note string
	}
	read := func(h topology.Health) *topology.Health { return &h }
	for name, steps := range map[string][]step{
		"a program's fault":       {{xid: 13}, {xid: 31}, {xid: 43}, {xid: 45}, {xid: 109}},
		"a repair that is due":    {{xid: 63, reading: read(topology.Health{Remap: true}), note: "rows to be remapped"}},
		"heat":                    {{reading: read(topology.Health{Throttled: []string{"heat", "power cap"}}), note: "throttled: heat, power cap"}, {reading: read(topology.Health{})}},
		"off the bus":             {{xid: 79, problem: "Xid 79: it has fallen off the bus"}, {reading: read(topology.Health{}), problem: "Xid 79"}},
		"an unknown Xid":          {{xid: 4711, problem: "Xid 4711"}, {xid: 13, problem: "Xid 4711"}},
		"lost, and back":          {{reading: read(topology.Health{Lost: "reset the GPU"}), problem: "reset the GPU"}, {reading: read(topology.Health{ECC: 3})}},
		"old memory errors":       {{reading: read(topology.Health{ECC: 7})}, {reading: read(topology.Health{ECC: 7})}},
		"new memory errors":       {{reading: read(topology.Health{ECC: 7})}, {reading: read(topology.Health{ECC: 9}), problem: "2 uncorrected memory errors"}},
		"counters that are reset": {{reading: read(topology.Health{ECC: 7})}, {reading: read(topology.Health{ECC: 0})}, {reading: read(topology.Health{ECC: 1}), problem: "1 uncorrected"}},
		"lost after errors":       {{reading: read(topology.Health{ECC: 7})}, {reading: read(topology.Health{Lost: "gone"}), problem: "gone"}, {reading: read(topology.Health{ECC: 7})}},
		"memory beyond repair":    {{reading: read(topology.Health{RemapFailed: true}), problem: "could not be repaired"}},
	} {
		var j HealthTracker
		if j.Problem() != "" || j.Warning() != "" {
			t.Error("a GPU of which nothing is known is not trusted")
		}
		for i, s := range steps {
			if s.xid != 0 {
				if held := j.RecordXid(s.xid); held == applicationXids[s.xid] {
					t.Errorf("%s, step %d: held against the GPU is %v", name, i, held)
				}
			}
			if s.reading != nil {
				j.RecordReading(*s.reading)
			}
			if got := j.Problem(); (got == "") != (s.problem == "") || !strings.Contains(got, s.problem) {
				t.Errorf("%s, step %d: problem %q, want %q", name, i, got, s.problem)
			}
			if got := j.Warning(); (got == "") != (s.note == "") || !strings.Contains(got, s.note) {
				t.Errorf("%s, step %d: note %q, want %q", name, i, got, s.note)
			}
		}
	}
}
