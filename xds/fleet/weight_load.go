package fleet

import (
	"net/netip"
	"time"

	"github.com/cascadeinfer/cascade/xds/internal/loadreport"
)

// Proxies tells what the proxies in front of the replicas see.
type Proxies interface {
	// Seen is what they have told lately, all together, by the address of the
	// replica. An address that none has traffic on is missing; nil means that no
	// proxy reports at all. It must not block.
	Seen(now time.Time) map[netip.AddrPort]loadreport.Seen
}

// Proxied is what the proxies tell of the replicas; see Proxies. It comes once a
// second at most.
type Proxied struct {
	Seen map[netip.AddrPort]loadreport.Seen
}

func (Proxied) event() {}

// proxied takes in what the proxies tell.
func (s *State) proxied(now time.Time, seen map[netip.AddrPort]loadreport.Seen) {
	if seen == nil {
		return // silence is not the same as no request
	}
	for _, r := range s.replicas {
		a, err := netip.ParseAddrPort(r.Address)
		if err != nil {
			continue
		}
		s.judge(now, r, seen[a])
	}
}

// judge tells a replica's model what happened.
func (s *State) judge(now time.Time, r *replica, ev loadreport.Event) {
	limits := loadreport.Replica{KV: r.Capacity.KV, Batch: r.Capacity.Batch, Late: s.rules.Grace}
	if m := s.model(r.Model); m != nil {
		limits.Context = m.Context
		if m.Cost.D2 > 0 && r.Capacity.TransferRate > 0 {
			// What is computed, and what is handed over by others like it.
			limits.Rate = 1/m.Cost.D2 + float64(r.Capacity.TransferRate*float64(m.Context))
		}
	}
	r.figure = r.judged.Step(now, limits, ev)
}

// claimOf is what a report says of the replica's load.
func claimOf(r Report) loadreport.Claim {
	return loadreport.Claim{
		Running: r.Load.Running, Waiting: r.Load.Waiting, Streams: r.Settling.Streams,
		Held: r.Load.Held, Promised: r.Load.Promised, Bounded: r.LoadBounded,
	}
}

// weigh computes the stages' next weights and says whether any changed.
func (s *State) weigh(now time.Time, m *model) (changed bool) {
	for _, stage := range m.plan.Stages {
		loads := make([]Loaded, 0, len(stage.Replicas))
		for _, id := range stage.Replicas {
			if r := s.serving(m, id); r != nil {
				s.judge(now, r, loadreport.Tick{})
				f := r.figure
				loads = append(loads, Loaded{
					ID: id, Work: f.Work, KV: r.Capacity.KV, Weight: s.weightOf(r),
					Fresh:    r.ready() && f.Source != loadreport.Nobody,
					Requests: f.Requests, Counted: f.Counted, Drift: f.Drift,
				})
			}
		}
		for id, w := range Weights(loads) {
			if r := s.byID[id]; r != nil && r.weight != w {
				r.weight, changed = w, true
			}
		}
	}
	return changed
}

// doubts is what is wrong with a replica's reports, in a few words.
func (r *replica) doubts() string {
	if r.figure.Distrusted == "" {
		return r.note
	}
	note := "not believed, its weight goes back to neutral: it reports " + r.figure.Distrusted
	if r.note != "" {
		note += "; " + r.note
	}
	return note
}
