package fleetstate

import (
	"time"

	"github.com/cascadeinfer/cascade/policies/balance"
)

// When proxies' failures count as a wrong or unreachable address.
const (
	// unreachableAfter is how long all requests must fail, and minFailures how many of
	// them there must be at least: two, after which a proxy ejects the address, and the one
	// with which it tries again.
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
	if p.Failed == 0 {
		return
	}
	if r.reach.failingSince.IsZero() {
		r.reach.failingSince = now
	}
	r.reach.failures += p.Failed
	if now.Sub(r.reach.failingSince) >= unreachableAfter && r.reach.failures >= minFailures {
		r.reach.downUntil = now.Add(unreachableFor)
	}
}

// answered counts the requests of its clients that the front end has answered or refused.
func (r *Replica) answered() uint64 {
	s := &r.Report.Service
	return s.Failed + s.FirstToken.Total() + r.Report.Refused
}
