package sim

import (
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
)

// proxy is one proxy in front of the fleet: its router, and what it knows of the replicas.
type proxy struct {
	router   baseline.Router
	replicas []baseline.Replica
	measured []policies.Tokens // loads that are on their way here
	since    []policies.Tokens // prompts sent since they were measured
}

func newProxy(router baseline.Router, replicas int) proxy {
	return proxy{router: router, replicas: make([]baseline.Replica, replicas), measured: make([]policies.Tokens, replicas), since: make([]policies.Tokens, replicas)}
}

// route returns the replica of a request; −1 if all are down.
func (p *proxy) route(q *request, rng *rand.Rand) int {
	return p.router.Route(baseline.Request{Input: q.Input, Prefix: q.Prefix}, p.replicas, rng)
}

// send counts a request that is sent to its replica.
func (p *proxy) send(q *request) {
	x := &p.replicas[q.replica]
	x.Requests++
	x.Load += q.Input
	p.since[q.replica] += q.Input
}

// end counts the end of a request that was sent.
func (p *proxy) end(q *request) { p.replicas[q.replica].Requests-- }

// recordLoads keeps measured loads until applyLoads.
func (p *proxy) recordLoads(loads []policies.Tokens) {
	copy(p.measured, loads)
	clear(p.since)
}

// applyLoads replaces the loads by the recorded ones and what was sent since.
func (p *proxy) applyLoads() {
	for i := range p.replicas {
		p.replicas[i].Load = p.measured[i] + p.since[i]
	}
}

// setDown records whether a replica gets no requests.
func (p *proxy) setDown(replica int, down bool) { p.replicas[replica].Down = down }
