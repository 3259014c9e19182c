package market

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/place"
)

// counts holds the counters of Status; guarded by Market.mu.
type counts struct {
	bidask.Counts                                            // as of the last step of the trader
	received                         [bidask.Drop + 1]uint64 // by kind
	summariesSent, summariesReceived uint64
	ignored                          uint64
	// Bytes of what replicas hold, in summaries, and how many of them were no valid summaries.
	prefixBytesSent, prefixBytesReceived, prefixesRefused uint64
	offers, exporting, importing                          int
	incoming, throughput                                  policies.Tokens
	residents, pinned                                     int
	pinnedSeconds                                         float64
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
	// PrefixBytesSent and PrefixBytesReceived count the bytes that say, in summaries, which
	// prompts replicas hold; PrefixesRefused counts those of a peer that were malformed, or of
	// another version. Holders counts the peers that are known to hold any now.
	PrefixBytesSent, PrefixBytesReceived, PrefixesRefused uint64
	Holders                                               int
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
	// Slowdown is how many times as long iterations take here as the profile says; see place.Calibration.
	Slowdown float64
	// LoadError is by what share the load of peers differs from what was believed before they reported it; see
	// place.Peers.LoadError.
	LoadError float64
	// Residents counts the requests that run here, Pinned those of them that may not migrate.
	// PinnedSeconds estimates the time until the last pinned one has ended by its max_tokens; it is
	// 0 if there is none or one has no limit.
	Residents, Pinned int
	PinnedSeconds     float64
}

// Status returns the current state; residents are as of the last scan.
func (m *Market) Status() Status {
	var heard, holders int
	var forwards uint64
	var slowdown, loadError float64
	m.peers.do(func(v *place.Peers) {
		heard, forwards, holders = v.CountFresh(m.now()), v.Forwards(), v.Holders()
		slowdown, loadError = v.Slowdown(), v.LoadError()
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.counts
	return Status{
		Offered: nonZero[policies.MigrationCause](c.Offered[:]), MovedOut: nonZero[policies.MigrationCause](c.MovedOut[:]), FailedOut: nonZero[policies.MigrationCause](c.FailedOut[:]),
		MovedIn: c.MovedIn, FailedIn: c.FailedIn, Returned: nonZero[bidask.ReturnReason](c.Returned[:]),
		Sent: nonZero[bidask.MessageKind](c.Sent[:]), Received: nonZero[bidask.MessageKind](c.received[:]),
		SummariesSent: c.summariesSent, SummariesReceived: c.summariesReceived, Ignored: c.ignored,
		PrefixBytesSent: c.prefixBytesSent, PrefixBytesReceived: c.prefixBytesReceived, PrefixesRefused: c.prefixesRefused, Holders: holders,
		Offers: c.offers, Exporting: c.exporting, Importing: c.importing, Incoming: c.incoming, Throughput: c.throughput,
		FreshPeers: heard, Forwards: forwards, Slowdown: slowdown, LoadError: loadError,
		Residents: c.residents, Pinned: c.pinned, PinnedSeconds: c.pinnedSeconds,
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

// recordDeals makes the trader's counts visible to Status.
func (m *Market) recordDeals() {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.counts
	c.Counts, c.incoming, c.throughput = m.trader.Counts(), m.trader.Incoming(), m.trader.Throughput()
	c.offers, c.exporting, c.importing = m.trader.Deals()
}

// recordResidents counts the requests that run here.
func (m *Market) recordResidents(s *bidask.Situation) {
	pinned, last, limited := 0, policies.Tokens(0), true
	for i := range s.Residents {
		r := &s.Residents[i]
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
	c.residents, c.pinned, c.pinnedSeconds = len(s.Residents), pinned, 0
	if limited {
		c.pinnedSeconds = float64(last) * s.Load.Iteration
	}
}
