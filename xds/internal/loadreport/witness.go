package loadreport

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Replica is what is known of a replica whoever tells of its load.
type Replica struct {
	KV    policies.Tokens // its KV cache
	Batch int             // sequences that it runs at once
	// Context is the longest sequence that its model takes; 0: not known.
	Context policies.Tokens
	// Rate is how fast its engine and its link can fill the cache, in tokens per
	// second; 0: not known.
	Rate float64
	// Late is how long a word of the migrator counts, at least a second.
	Late time.Duration
}

// Event is what happens to a Model: a Claim, a Seen or a Tick.
type Event interface{ event() }

// Claim is a report of the replica's migrator.
type Claim struct {
	Running, Waiting int
	// Streams are the requests of its own clients, wherever they run: what the
	// proxies have in progress there.
	Streams        int
	Held, Promised policies.Tokens
	// Bounded says that the report had figures out of all bounds, negative ones
	// among them, which were cut before they came here.
	Bounded bool
}

// Seen is what the proxies tell of the replica, all together.
type Seen struct {
	Requests int // in progress now
	// Answers is how many answers told the share of the KV cache in use since
	// the last word, and Share the mean of what they told, from 0 to 1.
	Answers uint64
	Share   float64
}

// Tick says that time has passed and that weights are about to be computed: at
// most one a second.
type Tick struct{}

func (Claim) event() {}
func (Seen) event()  {}
func (Tick) event()  {}

// How far a claim may go before it cannot be true.
const (
	// sharing is how many times requests may count the same block: lengths are
	// summed, and prefixes are held once.
	sharing = 16
	// batches is how many times its batch an engine may say that it runs.
	batches = 2
	// hidden is how many requests proxies must have in progress that a migrator
	// does not know of, and half of all of them, before it counts against it:
	// requests begin and end between the two reports.
	hidden = 8
)

// impossible says why no replica could be in the state that is claimed, or "".
func (r Replica) impossible(c Claim) string {
	context := policies.Tokens(c.Running) * r.Context
	switch {
	case c.Bounded || c.Held < 0 || c.Promised < 0 || c.Running < 0 || c.Waiting < 0 || c.Streams < 0:
		return "figures out of bounds"
	case c.Held > r.KV && (r.Context > 0 && c.Held > context || c.Held > sharing*r.KV):
		return "more tokens than its KV cache holds"
	case c.Running > batches*max(r.Batch, 1):
		return "more running requests than its batch takes"
	}
	return ""
}

// jump says why a replica could not go from one state to the next in so short a
// time, or "". Half a cache may come at once, as a prefix that is there already;
// the rest has to be computed or moved. A cache may be empty at once.
func (r Replica) jump(from, to Claim, dt time.Duration) string {
	more := float64(min(to.Held, r.KV) - min(from.Held, r.KV))
	if r.Rate <= 0 || more <= float64(r.KV)/2+float64(r.Rate*dt.Seconds()) {
		return ""
	}
	return "more new tokens than its engine and link can bring"
}

// contradicts says why the proxies cannot have so much in progress at a replica
// whose migrator claims no more than that, or "". The other way round proves
// nothing: other proxies may not report, and requests move.
func (s Seen) contradicts(claimed int) string {
	if s.Requests-claimed < hidden || claimed >= (s.Requests+1)/2 {
		return ""
	}
	return "far fewer requests than proxies have in progress there"
}

// requests is how many requests a claim admits to, by the count that fits.
func (c Claim) requests() int { return max(c.Streams, c.Running+c.Waiting) }
