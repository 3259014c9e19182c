package loadreport

import (
	"math/bits"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Source says whose word a Figure is.
type Source uint8

const (
	// Nobody's: nothing is known that could be believed. The replica keeps its
	// weight, and loses what sets it apart a step at a time.
	Nobody Source = iota
	// Proxies: no migrator reports, so the requests in progress are what the
	// engine behind the address works on.
	Proxies
	// Migrator: the replica's own, fresh and uncontradicted report.
	Migrator
)

// String names the source in lower case.
func (s Source) String() string { return [...]string{"nobody", "proxies", "migrator"}[s] }

// Figure is what is believed of a replica's load.
type Figure struct {
	Source Source
	// Work is the tokens that the replica holds and has promised to hold; by
	// Proxies alone, an estimate. Meaningless by Nobody.
	Work policies.Tokens
	// Requests are in progress at the proxies; Visible says that those tell.
	Requests int
	Visible  bool
	// Counted says that Work was counted from Requests, by the size of a batch,
	// and is no better than a scale on which such replicas compare.
	Counted bool
	// Distrusted says why the migrator is not believed; "" while it is.
	Distrusted string
	// Drift says that it is time to take a step towards the neutral weight,
	// because nobody knows. Only in the Figure of a Tick.
	Drift bool
}

// The judgement of claims.
const (
	// Of the last window claims, or comparisons with what proxies see, this many
	// must be bad before a migrator is distrusted: any one can be an accident.
	enough = 3
	// parole is how long a distrusted migrator must say nothing bad before it is
	// believed again.
	parole = 10 * time.Second
	// driftSilent is how long nobody must know a replica's load before its weight
	// drifts, and the time between two steps; driftDoubted the same where a
	// migrator is distrusted, whose weight is what it made of it.
	driftSilent  = 10 * time.Second
	driftDoubted = 2 * time.Second
	// seenLate is how long a word of the proxies counts: three of their reports.
	seenLate = 3 * time.Second
	// shareLate is how long the last told share of the KV cache counts, which
	// comes with answers only.
	shareLate = 5 * time.Second
)

// Model is what is known of one replica's load. The zero value knows nothing.
// It is not safe for concurrent use.
type Model struct {
	claim     Claim
	claimedAt time.Time // zero: never
	// most is the largest number of requests that was claimed since the proxies
	// were last heard, so that a difference of time is not taken for a lie.
	most int

	seen   Seen
	seenAt time.Time

	share   float64
	shareAt time.Time

	// The last eight claims and comparisons, the newest in bit 0; 1 is bad.
	claims, comparisons uint8
	distrust            string    // why; "": trusted
	badAt               time.Time // of the last bad one

	dark  time.Time // since when nobody knows; zero: somebody does
	drift time.Time // of the last step
}

// Step applies an event that happened at now, which must not go back, and
// returns what is believed then.
func (m *Model) Step(now time.Time, r Replica, ev Event) Figure {
	switch ev := ev.(type) {
	case Claim:
		m.take(now, r, ev)
	case Seen:
		m.compare(now, r, ev)
	}
	if m.distrust != "" && now.Sub(m.badAt) >= parole {
		m.distrust, m.claims, m.comparisons = "", 0, 0
	}
	f := m.figure(now, r)
	if f.Source != Nobody {
		m.dark = time.Time{}
		return f
	}
	if m.dark.IsZero() {
		m.dark, m.drift = now, now
	}
	pace := driftSilent
	if m.distrust != "" {
		pace = driftDoubted
	}
	if _, tick := ev.(Tick); tick && now.Sub(m.drift) >= pace {
		m.drift, f.Drift = now, true
	}
	return f
}

// take judges a claim by itself and by the one before.
func (m *Model) take(now time.Time, r Replica, c Claim) {
	why := r.impossible(c)
	if why == "" && m.told(now, r) {
		why = r.jump(m.claim, c, now.Sub(m.claimedAt))
	}
	m.claims = m.judge(now, m.claims, why)
	m.claim, m.claimedAt = c, now
	m.most = max(m.most, c.requests())
}

// compare judges the claims since the last word of the proxies by this one.
func (m *Model) compare(now time.Time, r Replica, s Seen) {
	if m.told(now, r) {
		m.comparisons = m.judge(now, m.comparisons, s.contradicts(max(m.most, m.claim.requests())))
	}
	m.seen, m.seenAt, m.most = s, now, 0
	if s.Answers > 0 {
		m.share, m.shareAt = min(max(s.Share, 0), 1), now
	}
}

// judge shifts a verdict into a history and draws the consequence.
func (m *Model) judge(now time.Time, history uint8, why string) uint8 {
	history <<= 1
	if why == "" {
		return history
	}
	history |= 1
	m.badAt = now
	if bits.OnesCount8(history) >= enough {
		m.distrust = why
	}
	return history
}

// told says that the migrator's last word is not late.
func (m *Model) told(now time.Time, r Replica) bool {
	return !m.claimedAt.IsZero() && now.Sub(m.claimedAt) <= max(r.Late, time.Second)
}

func (m *Model) figure(now time.Time, r Replica) Figure {
	f := Figure{Distrusted: m.distrust}
	if f.Visible = !m.seenAt.IsZero() && now.Sub(m.seenAt) <= seenLate; f.Visible {
		f.Requests = m.seen.Requests
	}
	switch {
	case m.distrust != "":
	case m.told(now, r):
		f.Source, f.Work = Migrator, m.claim.Held+m.claim.Promised
	case m.claimedAt.IsZero() && f.Visible:
		// A migrator that fell silent keeps streams whose work is elsewhere, so
		// only where there never was one are requests in progress a load.
		f.Source = Proxies
		if !m.shareAt.IsZero() && now.Sub(m.shareAt) <= shareLate {
			f.Work = policies.Tokens(float64(m.share * float64(r.KV)))
			return f
		}
		f.Work, f.Counted = r.KV/policies.Tokens(max(r.Batch, 1))*policies.Tokens(f.Requests), true
	}
	return f
}
