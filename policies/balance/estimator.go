// Package balance shares requests out among replicas: it estimates how busy each one is, turns the
// estimates into the EDS weights of a stage, assigns keys to replicas by weighted rendezvous hashing
// (Rank), and chooses endpoints for gateways that do not follow routes (Picker).
//
// An Estimator has two sources: the reports of a replica's migrator, which counts tokens and may be
// wrong or lie, and the reports of the proxies in front of it, which count their requests in
// progress. It is fed with a Claim for every report of the former, a ProxyReport for every report of
// the latter, and a Tick before weights are computed. NextWeights is called after each Tick, at most
// once per WeightInterval, with the weights that it returned before. The control plane and the
// simulator drive both. Everything here is pure: time comes with every event and may be virtual.
//
// Invariants:
//  1. a migrator's report counts only while it is fresh and not contradicted,
//  2. the estimate for a replica without such a report comes from the proxies or is
//     Unknown; it is never an extreme value, and it does not fall because answers stop,
//  3. the same events at the same times give the same estimates,
//  4. a weight is always one of WeightSteps, and one call changes it by at most one step. A
//     burst of false reports can therefore do little before it ends.
package balance

import (
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
)

// LoadSource says where an Estimate comes from.
type LoadSource uint8

const (
	// Unknown means that no source can be used. The replica keeps its weight at first,
	// and then drifts to the neutral one a step at a time.
	Unknown LoadSource = iota
	// Proxies means that no migrator has ever reported, so the requests in progress at
	// the proxies are the load of the engine behind the address.
	Proxies
	// Migrator means that the replica's own report is fresh and not contradicted.
	Migrator
)

// String names the source in lower case.
func (s LoadSource) String() string { return [...]string{"unknown", "proxies", "migrator"}[s] }

// Estimate is the estimated load of a replica.
type Estimate struct {
	Source LoadSource
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
func (e *Estimator) Step(now policies.Micros, r Engine, ev Event) Estimate {
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
func (e *Estimator) handleClaim(now policies.Micros, r Engine, c Claim) {
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
func (e *Estimator) handleProxyReport(now policies.Micros, r Engine, p ProxyReport) {
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
func (e *Estimator) claimFresh(now policies.Micros, r Engine) bool {
	return e.claimed && now-e.claimedAt <= max(r.Late, policies.Second)
}

func (e *Estimator) estimate(now policies.Micros, r Engine) Estimate {
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

// Engine is what the control plane knows of a replica without its reports.
type Engine struct {
	KV    policies.Tokens // its KV cache
	Batch int             // sequences that it runs at once
	// Context is the longest sequence that its model accepts; 0: not known.
	Context policies.Tokens
	// Rate is how fast its engine and its link can fill the cache, in tokens per
	// second; 0: not known.
	Rate float64
	// Late is how long a claim of the migrator counts, at least a second.
	Late policies.Micros
}

// NewEngine returns the Engine of a replica, for a model with this context. The engine's cost
// bounds how fast its cache fills. late is Engine.Late.
func NewEngine(r policies.Replica, cost policies.Cost, context policies.Tokens, late policies.Micros) Engine {
	out := Engine{KV: r.Capacity.KV, Batch: r.Capacity.Batch, Context: context, Late: late}
	if cost.D2 > 0 && r.Capacity.TransferRate > 0 {
		// Tokens arrive as its engine computes them and as migrations bring them.
		out.Rate = 1/cost.D2 + float64(r.Capacity.TransferRate*float64(context))
	}
	return out
}

// Event is an input of an Estimator: a Claim, a ProxyReport or a Tick.
type Event interface{ event() }

// Claim is the load that the replica's migrator reports.
type Claim struct {
	Running, Waiting int
	// Streams are the requests of its own clients, wherever they run. The proxies count
	// the same requests as in progress at the replica.
	Streams        int
	Held, Promised policies.Tokens
	// Bounded says that the report had figures out of bounds, negative ones
	// included, which were bounded before they came here.
	Bounded bool
}

// ProxyReport is the sum of the reports of all proxies about the replica.
type ProxyReport struct {
	Requests int // in progress now
	// Answers is how many responses since the last report carried the share of the KV
	// cache in use, and Share is their mean, from 0 to 1.
	Answers uint64
	Share   float64
	// Succeeded and Failed are how many requests ended since the last report, the
	// latter by an answer 5xx, or without one.
	Succeeded, Failed uint64
}

// Tick says that time has passed and that weights are about to be computed: at
// most one a second.
type Tick struct{}

func (Claim) event()       {}
func (ProxyReport) event() {}
func (Tick) event()        {}

// Bounds of a plausible claim.
const (
	// maxSharing is how many times requests may count the same block: lengths are
	// summed, but a shared prefix is held once.
	maxSharing = 16
	// maxBatches is how many times its batch an engine may claim to run.
	maxBatches = 2
	// minHidden is how many requests, and half of all of them, proxies must have in
	// progress beyond those that a migrator claims before the claim counts as bad:
	// requests begin and end between the two reports.
	minHidden = 8
)

// impossible returns why no replica can be in the claimed state, or "".
func (r Engine) impossible(c Claim) string {
	context := policies.Tokens(c.Running) * r.Context
	switch {
	case c.Bounded || c.Held < 0 || c.Promised < 0 || c.Running < 0 || c.Waiting < 0 || c.Streams < 0:
		return "figures out of bounds"
	case c.Held > r.KV && (r.Context > 0 && c.Held > context || c.Held > maxSharing*r.KV):
		return "more tokens than its KV cache holds"
	case c.Running > maxBatches*max(r.Batch, 1):
		return "more running requests than its batch takes"
	}
	return ""
}

// impossibleChange returns why a replica cannot get from one state to the next within
// dt, or "". Half a cache may be added at once, as a prefix that is cached already; the
// rest has to be computed or migrated. A cache may become empty at once.
func (r Engine) impossibleChange(from, to Claim, dt policies.Micros) string {
	added := float64(min(to.Held, r.KV) - min(from.Held, r.KV))
	if r.Rate <= 0 || added <= float64(r.KV)/2+float64(r.Rate*(float64(dt)/float64(policies.Second))) {
		return ""
	}
	return "more new tokens than its engine and link can bring"
}

// contradicts returns why the proxies' requests in progress contradict a migrator that
// claims at most claimed requests, or "". Claims of more requests are not contradicted:
// other proxies may not report, and requests migrate.
func (p ProxyReport) contradicts(claimed int) string {
	if p.Requests-claimed < minHidden || claimed >= (p.Requests+1)/2 {
		return ""
	}
	return "far fewer requests than proxies have in progress there"
}

// requests returns the larger of the two counts of requests in a claim.
func (c Claim) requests() int { return max(c.Streams, c.Running+c.Waiting) }
