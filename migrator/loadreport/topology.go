package loadreport

import (
	"sync"

	"github.com/cascadeinfer/cascade/xds/api"
)

// told knows whether the control plane has heard where the replica is: a message
// that is large beside the rest and hardly ever changes. The zero value has told
// nothing. It is safe for concurrent use, as moves is.
type told struct {
	mu       sync.Mutex
	site     *api.Site
	sequence uint64 // the first report of this stream with it; 0: none yet
	answered bool
}

// news returns the site if the report of that number is to tell it, else nil.
func (t *told) news(site *api.Site, sequence uint64) *api.Site {
	t.mu.Lock()
	defer t.mu.Unlock()
	if site != t.site {
		t.site, t.sequence, t.answered = site, 0, false
	}
	if t.answered || site == nil {
		return nil
	}
	if t.sequence == 0 {
		t.sequence = sequence
	}
	return site
}

// heard notes that all reports up to that number were taken in.
func (t *told) heard(sequence uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered = t.answered || t.sequence != 0 && t.sequence <= sequence
}

// restart begins a new stream, at whose other end somebody else may be.
func (t *told) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence, t.answered = 0, false
}
