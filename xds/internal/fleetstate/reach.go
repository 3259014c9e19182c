package fleetstate

import (
	"time"

	"github.com/cascadeinfer/cascade/policies/balance"
)

// When proxies' failures count as a wrong or unreachable address.
const (
	// unreachableAfter is how long no request may succeed after the first failure, and
	// minFailures how many must fail, in more than one report: two, after which a proxy
	// ejects the address, and the one with which it tries again. Proxies wait longer each
	// time, so no failure is required at the end of unreachableAfter.
	unreachableAfter = 3 * time.Second
	minFailures      = 3
	// unreachableFor is how long the replica then gets no request. Nothing else shows
	// that its address works again: without requests proxies report nothing.
	unreachableFor = 30 * time.Second
)

// reach is what proxies see of the replica's address, beside what its migrator reports: a
// front end with a wrong address in the configuration reports that it is well, and idle.
type reach struct {
	failingSince time.Time // zero: no request has failed since the last one that arrived
	failures     uint64
	repeated     bool      // requests have failed in more than one report
	received     uint64    // requests of clients that the front end had got at failingSince
	downUntil    time.Time // until then the replica counts as unreachable
}

// HandleProxyReport applies what the proxies report of the replica's address. Failures
// count while no request succeeds and none arrives at the front end: a front end that
// refuses requests is reachable, and one that still answers requests which it got at an
// earlier address need not be. Requests of other front ends reach its engine by its
// peer address and prove nothing. Failures do not count while its migrator is away: a migrator
// that restarts explains them, and its replica must take requests once it is back.
func (r *Replica) HandleProxyReport(now time.Time, p balance.ProxyReport) {
	received := r.Report.Service.Received
	if !r.Connected || p.Succeeded > 0 || received != r.reach.received {
		r.reach = reach{received: received}
		return
	}
	if p.Failed > 0 {
		r.reach.repeated = !r.reach.failingSince.IsZero()
		if !r.reach.repeated {
			r.reach.failingSince = now
		}
		r.reach.failures += p.Failed
	} else if !r.reach.downUntil.IsZero() {
		return // tried again after unreachableFor: only another failure proves anything
	}
	if r.reach.repeated && r.reach.failures >= minFailures && now.Sub(r.reach.failingSince) >= unreachableAfter {
		r.reach.downUntil = now.Add(unreachableFor)
	}
}
