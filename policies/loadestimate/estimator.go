package loadestimate

import (
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
)

// Source says where an Estimate comes from.
type Source uint8

const (
	// Unknown means that no source can be used. The replica keeps its weight at first,
	// and then drifts to the neutral one a step at a time.
	Unknown Source = iota
	// Proxies means that no migrator has ever reported, so the requests in progress at
	// the proxies are the load of the engine behind the address.
	Proxies
	// Migrator means that the replica's own report is fresh and not contradicted.
	Migrator
)

// String names the source in lower case.
func (s Source) String() string { return [...]string{"unknown", "proxies", "migrator"}[s] }

// Estimate is the estimated load of a replica.
type Estimate struct {
	Source Source
	// Work is the tokens that the replica holds and has promised to hold. It is
	// approximate where the source is Proxies, and meaningless where it is Unknown.
	Work policies.Tokens
	// Requests are in progress at the proxies; Visible says that proxies report.
	Requests int
	Visible  bool
	// Counted says that Work was derived from Requests and the batch size: it only
	// compares such replicas with each other.
	Counted bool
	// Distrusted is the reason why the migrator's reports are ignored; "" while they
	// are not.
	Distrusted string
	// Drift says that the weight should take a step towards the neutral one, because
	// the load has been unknown for a while. Set only in the Estimate of a Tick.
	Drift bool
}

// When a migrator is distrusted, and for how long a report counts.
const (
	// distrustAfter is how many of the last eight claims, or of the last eight
	// comparisons with the proxies, must be bad before a migrator is distrusted: any
	// single one can be an accident.
	distrustAfter = 3
	// probation is how long a distrusted migrator must report nothing bad before it
	// is trusted again.
	probation = 10 * policies.Second
	// driftSilent is how long the load must be unknown before the weight drifts, and
	// the time between two steps; driftDistrusted is the same for a distrusted
	// migrator, whose weight is the result of its own reports.
	driftSilent     = 10 * policies.Second
	driftDistrusted = 2 * policies.Second
	// proxiesLate is how long a report of the proxies counts: three of their
	// intervals.
	proxiesLate = 3 * policies.Second
	// shareLate is how long the last share of the KV cache counts alone. Only responses
	// carry the share. After that, the requests in progress count too.
	shareLate = 5 * policies.Second
)

// Estimator estimates the load of one replica. The zero value has seen no report.
// It is not safe for concurrent use.
type Estimator struct {
	claim     Claim
	claimed   bool
	claimedAt policies.Micros // of claim, if claimed
	// mostClaimed is the largest number of requests claimed since the last report of
	// the proxies, so that a difference in time is not mistaken for a false claim.
	mostClaimed int

	proxies   ProxyReport
	reported  bool            // by proxies
	proxiesAt policies.Micros // of proxies, if reported

	share         float64
	shareKnown    bool
	shareAt       policies.Micros // of share, if known
	shareRequests int             // in progress at that time

	// The last eight claims and comparisons, the newest in bit 0; 1 is bad.
	claims, comparisons uint8
	distrusted          string          // why; "": trusted
	badAt               policies.Micros // of the last bad one, if distrusted

	unknown   bool            // the load was unknown after the last event
	driftedAt policies.Micros // of the last step, or since the load is unknown
}

// Step applies an event that happened at now, which must not go back, and returns
// the estimate after it.
func (e *Estimator) Step(now policies.Micros, r Replica, ev Event) Estimate {
	switch ev := ev.(type) {
	case Claim:
		e.handleClaim(now, r, ev)
	case ProxyReport:
		e.handleProxyReport(now, r, ev)
	}
	if e.distrusted != "" && now-e.badAt >= probation {
		e.distrusted, e.claims, e.comparisons = "", 0, 0
	}
	out := e.estimate(now, r)
	if out.Source != Unknown {
		e.unknown = false
		return out
	}
	if !e.unknown {
		e.unknown, e.driftedAt = true, now
	}
	interval := driftSilent
	if e.distrusted != "" {
		interval = driftDistrusted
	}
	if _, tick := ev.(Tick); tick && now-e.driftedAt >= interval {
		e.driftedAt, out.Drift = now, true
	}
	return out
}

// handleClaim checks a claim by itself and against the one before.
func (e *Estimator) handleClaim(now policies.Micros, r Replica, c Claim) {
	reason := r.impossible(c)
	if reason == "" && e.claimFresh(now, r) {
		reason = r.impossibleChange(e.claim, c, now-e.claimedAt)
	}
	e.claims = e.recordVerdict(now, e.claims, reason)
	e.claim, e.claimed, e.claimedAt = c, true, now
	e.mostClaimed = max(e.mostClaimed, c.requests())
}

// handleProxyReport checks the claims since the last report of the proxies against
// this one.
func (e *Estimator) handleProxyReport(now policies.Micros, r Replica, p ProxyReport) {
	if e.claimFresh(now, r) {
		e.comparisons = e.recordVerdict(now, e.comparisons, p.contradicts(max(e.mostClaimed, e.claim.requests())))
	}
	e.proxies, e.reported, e.proxiesAt, e.mostClaimed = p, true, now, 0
	switch {
	case p.Answers > 0:
		e.share, e.shareKnown, e.shareAt, e.shareRequests = min(max(p.Share, 0), 1), true, now, p.Requests
	case p.Requests < e.shareRequests && now-e.shareAt > shareLate:
		// What has ended holds nothing any more.
		e.share, e.shareRequests = e.share*float64(p.Requests)/float64(e.shareRequests), p.Requests
	}
}

// recordVerdict shifts a verdict into a history, and distrusts the migrator after too
// many bad ones. reason is empty for a good verdict.
func (e *Estimator) recordVerdict(now policies.Micros, history uint8, reason string) uint8 {
	history <<= 1
	if reason == "" {
		return history
	}
	history |= 1
	e.badAt = now
	if bits.OnesCount8(history) >= distrustAfter {
		e.distrusted = reason
	}
	return history
}

// claimFresh reports whether the migrator's last claim still counts.
func (e *Estimator) claimFresh(now policies.Micros, r Replica) bool {
	return e.claimed && now-e.claimedAt <= max(r.Late, policies.Second)
}

func (e *Estimator) estimate(now policies.Micros, r Replica) Estimate {
	out := Estimate{Distrusted: e.distrusted}
	if out.Visible = e.reported && now-e.proxiesAt <= proxiesLate; out.Visible {
		out.Requests = e.proxies.Requests
	}
	switch {
	case e.distrusted != "":
	case e.claimFresh(now, r):
		out.Source, out.Work = Migrator, e.claim.Held+e.claim.Promised
	case !e.claimed && out.Visible:
		// A migrator that stopped reporting may keep streams whose work runs on other
		// replicas. Requests in progress are therefore a load only if it never
		// reported.
		out.Source = Proxies
		fresh := e.shareKnown && now-e.shareAt <= shareLate
		out.Work, out.Counted = r.KV/policies.Tokens(max(r.Batch, 1))*policies.Tokens(out.Requests), !fresh
		// Requests that get no answer hold at least what they held: an engine that is
		// silent has no room for others.
		if work := policies.Tokens(float64(e.share * float64(r.KV))); fresh || work > out.Work {
			out.Work, out.Counted = work, false
		}
	}
	return out
}
