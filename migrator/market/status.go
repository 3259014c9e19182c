package market

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/place"
)

// Status is the state of a market. Counters start at New.
type Status struct {
	bidask.Counts // as of the last step of the trader; Sent[bidask.Ready] counts kept promises
	// Received counts messages by kind; Received[bidask.Busy] counts skips by busy sellers.
	Received                         [bidask.Drop + 1]uint64
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
	m.mu.Lock()
	s := m.status
	m.mu.Unlock()
	m.peers.do(func(v *place.Peers) {
		s.FreshPeers, s.Forwards, s.Holders = v.CountFresh(m.now()), v.Forwards(), v.Holders()
		s.Slowdown, s.LoadError = v.Slowdown(), v.LoadError()
	})
	return s
}

// recordDeals makes the trader's counts visible to Status.
func (m *Market) recordDeals() {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.status
	s.Counts, s.Incoming, s.Throughput = m.trader.Counts(), m.trader.Incoming(), m.trader.Throughput()
	s.Offers, s.Exporting, s.Importing = m.trader.Deals()
}

// recordResidents counts the requests that run here.
func (m *Market) recordResidents(now *bidask.Situation) {
	pinned, last, limited := 0, policies.Tokens(0), true
	for i := range now.Residents {
		r := &now.Residents[i]
		if r.Pinned == policies.NotPinned {
			continue
		}
		pinned++
		limited = limited && r.Request.MaxOutput > 0
		last = max(last, r.Request.MaxOutput-r.Request.Output)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.status
	s.Residents, s.Pinned, s.PinnedSeconds = len(now.Residents), pinned, 0
	if limited {
		s.PinnedSeconds = float64(last) * now.Load.Iteration
	}
}
