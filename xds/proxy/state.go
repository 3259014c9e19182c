package proxy

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/endpointpicker"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// state is a plan prepared for requests. It is immutable, except for its stages, which outlive
// it.
type state struct {
	plan   *resources.Routing
	view   *endpointpicker.View
	stages map[stageKey]*stage
	epochs map[string]policies.Epoch // by model
	link   link
}

type stageKey struct {
	model string
	stage int
}

// stage is what the proxy counts of a stage. It stays the same when the plan changes.
type stage struct {
	name, endpoints string       // of the stage in the tables of Envoys, for metrics and reports
	label           []string     // of answers
	requests        atomic.Int64 // in flight
	metrics         stageMetrics

	mu    sync.Mutex
	loads map[string]*load // by address
}

// load returns the counters of a replica.
func (s *stage) load(address string) *load {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.loads[address]
	if l == nil {
		l = new(load)
		s.loads[address] = l
	}
	return l
}

// keep forgets the counters of replicas that are not wanted any more and have no requests.
func (s *stage) keep(wanted map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.loads, func(address string, l *load) bool { return !wanted[address] && l.active.Load() <= 0 })
}

// samples returns the samples of the replicas that have requests, or had some since the last
// call.
func (s *stage) samples() map[string]sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]sample)
	for address, l := range s.loads {
		n := sample{uint64(max(l.active.Load(), 0)), l.issued.Swap(0), l.succeeded.Swap(0), l.failed.Swap(0)}
		if n != (sample{}) {
			out[address] = n
		}
	}
	return out
}

// Update implements routing.Watcher: new requests use the plan.
func (p *Proxy) Update(s *routing.Snapshot) {
	if plan := s.Plan(); plan != nil {
		p.apply(plan)
	}
}

// apply makes new requests use a plan.
func (p *Proxy) apply(plan *resources.Routing) {
	old := p.state.Load()
	next := &state{
		plan: plan, view: endpointpicker.NewView(plan), stages: make(map[stageKey]*stage),
		epochs: make(map[string]policies.Epoch),
		link: link{plan.Proxy.ReplicaTLS, int(plan.Proxy.MaxRequests), plan.Proxy.ConnectTimeout,
			plan.Proxy.PingTimeout},
	}
	used := make(map[string]bool)
	for i := range plan.Models {
		m := &plan.Models[i]
		next.epochs[m.Model] = m.Plan.Epoch
		for k := range m.Plan.Stages {
			at := stageKey{m.Model, k}
			if old != nil {
				next.stages[at] = old.stages[at]
			}
			if next.stages[at] == nil {
				name := resources.ClusterName(m.Model, k)
				next.stages[at] = &stage{
					name: name, endpoints: resources.EndpointName(m.Model, k), label: []string{resources.StageName(k)},
					metrics: p.metrics.stage(name), loads: make(map[string]*load),
				}
			}
		}
		for _, r := range m.Replicas {
			used[r.Address] = true
		}
	}
	p.state.Store(next)
	// A request may hold the old state until then, and would open the connections again.
	p.replicas.keep(used)
	for _, s := range next.stages {
		s.keep(used)
	}
	p.appliedOnce.Do(func() { close(p.applied) })
}
