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
	site         *api.Site
	sequence     uint64 // the first report of this stream with it; 0: none yet
	acknowledged bool
}

// pending returns the site if the report with this sequence must contain it, else nil.
func (t *topologyDelta) pending(site *api.Site, sequence uint64) *api.Site {
	t.mu.Lock()
	defer t.mu.Unlock()
	if site != t.site {
		t.site, t.sequence, t.acknowledged = site, 0, false
	}
	if t.acknowledged || site == nil {
		return nil
	}
	if t.sequence == 0 {
		t.sequence = sequence
	}
	return site
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
