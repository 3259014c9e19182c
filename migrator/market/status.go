package market

import (
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// counts holds the counters of Status; guarded by Market.mu.
type counts struct {
	offered, movedOut, failedOut     [policies.Spill + 1]uint64 // by cause
	movedIn, failedIn                uint64
	sent, received                   [bidask.Drop + 1]uint64                // by kind
	returned                         [bidask.ReturnTooManyOffers + 1]uint64 // by reason
	summariesSent, summariesReceived uint64
	ignored                          uint64
	offers, exporting, importing     int
	incoming, throughput             policies.Tokens
	residents, pinned                int
	pinnedSeconds                    float64
}

// Status is the state of a market. Counters start at New.
type Status struct {
	// Offered, MovedOut and FailedOut count requests that were offered, that left, and whose
	// transfer failed. MovedIn and FailedIn count those that arrived and those that did not.
	Offered, MovedOut, FailedOut map[policies.MigrationCause]uint64
	MovedIn, FailedIn            uint64
	// Returned counts offers that were not sold.
	Returned map[bidask.ReturnReason]uint64
	// Sent and Received count messages; Received[bidask.Busy] counts skips by busy
	// sellers, Sent[bidask.Ready] kept promises.
	Sent, Received                   map[bidask.MessageKind]uint64
	SummariesSent, SummariesReceived uint64
	// Ignored counts messages that were invalid or too many.
	Ignored uint64
	// Offers counts the requests for sale now; Exporting and Importing count running transfers;
	// Incoming counts purchases that have not arrived yet.
	Offers, Exporting, Importing int
	Incoming                     policies.Tokens
	// Throughput is the measured rate of incoming transfers in tokens per second, 0 if
	// unknown.
	Throughput policies.Tokens
	// FreshPeers counts the peers with a known load; Forwards the requests that were
	// placed at a peer.
	FreshPeers int
	Forwards   uint64
	// Residents counts the requests that run here, Pinned those of them that may not migrate.
	// PinnedSeconds estimates the time until the last pinned one has ended by its max_tokens; it is
	// 0 if there is none or one has no limit.
	Residents, Pinned int
	PinnedSeconds     float64
}

// Status returns the current state; residents are as of the last scan.
func (m *Market) Status() Status {
	heard, forwards := m.loads.CountFresh(m.now()), m.loads.Forwards()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.counts
	return Status{
		Offered: nonZero[policies.MigrationCause](c.offered[:]), MovedOut: nonZero[policies.MigrationCause](c.movedOut[:]), FailedOut: nonZero[policies.MigrationCause](c.failedOut[:]),
		MovedIn: c.movedIn, FailedIn: c.failedIn, Returned: nonZero[bidask.ReturnReason](c.returned[:]),
		Sent: nonZero[bidask.MessageKind](c.sent[:]), Received: nonZero[bidask.MessageKind](c.received[:]),
		SummariesSent: c.summariesSent, SummariesReceived: c.summariesReceived, Ignored: c.ignored,
		Offers: c.offers, Exporting: c.exporting, Importing: c.importing, Incoming: c.incoming, Throughput: c.throughput,
		FreshPeers: heard, Forwards: forwards, Residents: c.residents, Pinned: c.pinned, PinnedSeconds: c.pinnedSeconds,
	}
}

// nonZero returns the counts that are not 0, by kind.
func nonZero[K ~uint8](counts []uint64) map[K]uint64 {
	out := make(map[K]uint64)
	for k, n := range counts {
		if n > 0 {
			out[K(k)] = n
		}
	}
	return out
}

// countAction counts an action.
func (m *Market) countAction(a bidask.Action) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch a.Kind {
	case bidask.Send:
		m.counts.sent[a.Message.Kind]++
	case bidask.Return:
		m.counts.returned[a.Reason]++
	}
}

func (m *Market) countOffer(c policies.MigrationCause) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts.offered[c]++
}

// countMove counts the end of a transfer.
func (m *Market) countMove(c policies.MigrationCause, moved, out bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case out && moved:
		m.counts.movedOut[c]++
	case out:
		m.counts.failedOut[c]++
	case moved:
		m.counts.movedIn++
	default:
		m.counts.failedIn++
	}
}

// recordResidents counts the requests that run here.
func (m *Market) recordResidents(residents []frontend.LocalLeg, load policies.Load) {
	pinned, last, limited := 0, policies.Tokens(0), true
	for _, r := range residents {
		if r.Pinned == policies.NotPinned {
			continue
		}
		pinned++
		limited = limited && r.Request.MaxOutput > 0
		last = max(last, r.Request.MaxOutput-r.Request.Output)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.counts
	c.offers, c.exporting, c.importing = len(m.sales), len(m.exports), len(m.imports)
	c.incoming, c.throughput = m.machine.Incoming(), m.position.Throughput
	c.residents, c.pinned, c.pinnedSeconds = len(residents), pinned, 0
	if limited {
		c.pinnedSeconds = float64(last) * load.Iteration
	}
}
