package registry

import (
	"time"

	"github.com/cascadeinfer/cascade/policies/loadestimate"
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
	seen         uint64    // requests that the front end had counted at failingSince
	downUntil    time.Time // until then the replica counts as unreachable
}

// HandleProxyReport applies what the proxies report of the replica's address. Failures
// count while no request succeeds and the front end counts none: a front end that
// refuses requests is reachable. They do not count while its migrator is away: a migrator
// that restarts explains them, and its replica must take requests once it is back.
func (r *Replica) HandleProxyReport(now time.Time, p loadestimate.ProxyReport) {
	if !r.Connected || p.Succeeded > 0 || r.Seen() != r.reach.seen || r.Report.DrainProgress.Streams > 0 {
		r.reach = reach{seen: r.Seen()}
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
