package loadreport

import (
	"sync"

	"github.com/cascadeinfer/cascade/xds/api"
)

// topologyDelta tracks whether the control plane knows the replica's location, a large part
// of a report that hardly ever changes. The zero value has reported nothing. It is safe for
// concurrent use, like migrationDelta.
type topologyDelta struct {
	mu           sync.Mutex
	topology     *api.Topology
	sequence     uint64 // the first report of this stream with it; 0: none yet
	acknowledged bool
}

// pending returns the topology if the report with this sequence must contain it, else nil.
func (t *topologyDelta) pending(topology *api.Topology, sequence uint64) *api.Topology {
	t.mu.Lock()
	defer t.mu.Unlock()
	if topology != t.topology {
		t.topology, t.sequence, t.acknowledged = topology, 0, false
	}
	if t.acknowledged || topology == nil {
		return nil
	}
	if t.sequence == 0 {
		t.sequence = sequence
	}
	return topology
}

// acknowledge records that all reports up to a sequence were received.
func (t *topologyDelta) acknowledge(sequence uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acknowledged = t.acknowledged || t.sequence != 0 && t.sequence <= sequence
}

// reset starts a new stream, possibly to another process.
func (t *topologyDelta) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence, t.acknowledged = 0, false
}
