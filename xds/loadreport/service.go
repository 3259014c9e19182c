package loadreport

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Service counts how clients were served.
type Service struct {
	Failed               uint64 // requests that were answered with 5xx, or whose answer was cut
	FirstToken, PerToken policies.LatencyCounts
	// Received counts the requests that arrived at the address for clients, refused ones included and
	// health checks excluded.
	Received uint64
}

// Plus returns the sum of s and o.
func (s Service) Plus(o Service) Service {
	return Service{min(s.Failed+o.Failed, MaxSeen), s.FirstToken.Plus(o.FirstToken), s.PerToken.Plus(o.PerToken), min(s.Received+o.Received, MaxSeen)}
}

// Since returns the counts after earlier. A count that has restarted since is returned whole.
func (s Service) Since(earlier Service) Service {
	out := Service{s.Failed, s.FirstToken.Since(earlier.FirstToken), s.PerToken.Since(earlier.PerToken), s.Received}
	if s.Failed >= earlier.Failed {
		out.Failed -= earlier.Failed
	}
	if s.Received >= earlier.Received {
		out.Received -= earlier.Received
	}
	return out
}

// decodeService decodes a report. It bounds each count, and ignores lists with another number of buckets.
func decodeService(m *api.Service) Service {
	counts := func(list []uint64) (c policies.LatencyCounts) {
		if len(list) == len(c) {
			for i, n := range list {
				c[i] = min(n, MaxSeen)
			}
		}
		return c
	}
	return Service{min(m.GetFailed(), MaxSeen), counts(m.GetFirstToken()), counts(m.GetPerToken()), min(m.GetReceived(), MaxSeen)}
}
