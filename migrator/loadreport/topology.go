package loadreport

import (
	"sync"

	"github.com/cascadeinfer/cascade/xds/api"
)

// topologyDelta knows whether the control plane has heard where the replica is: a message
// that is large beside the rest and hardly ever changes. The zero value has told
// nothing. It is safe for concurrent use, as moves is.
type topologyDelta struct {
	mu           sync.Mutex
	site         *api.Site
	sequence     uint64 // the first report of this stream with it; 0: none yet
	acknowledged bool
}

// pending returns the site if the report of that number is to tell it, else nil.
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

// acknowledge notes that all reports up to that number were taken in.
func (t *topologyDelta) acknowledge(sequence uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acknowledged = t.acknowledged || t.sequence != 0 && t.sequence <= sequence
}

// reset begins a new stream, at whose other end somebody else may be.
func (t *topologyDelta) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence, t.acknowledged = 0, false
}
