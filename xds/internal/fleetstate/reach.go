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
	answered     uint64    // requests that the front end had answered or refused at failingSince
	downUntil    time.Time // until then the replica counts as unreachable
}

// HandleProxyReport applies what the proxies report of the replica's address. Failures
// count while no request succeeds and the front end answers none: a front end that
// refuses requests is reachable. Requests of other front ends reach its engine by its
// peer address and prove nothing. They do not count while its migrator is away: a migrator
// that restarts explains them, and its replica must take requests once it is back.
func (r *Replica) HandleProxyReport(now time.Time, p balance.ProxyReport) {
	if !r.Connected || p.Succeeded > 0 || r.answered() != r.reach.answered || r.Report.DrainProgress.Streams > 0 {
		r.reach = reach{answered: r.answered()}
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

// answered counts the requests of its clients that the front end has answered or refused.
func (r *Replica) answered() uint64 {
	s := &r.Report.Service
	return s.Failed + s.FirstToken.Total() + r.Report.Refused
}
