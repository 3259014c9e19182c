package sim

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
)

// proxy is one proxy in front of the fleet: its router, and what it knows of the replicas.
type proxy struct {
	router   baseline.Router
	reads    bool // what replicas have cached
	replicas []baseline.Replica
	measured []policies.Tokens // loads that are on their way here
	since    []policies.Tokens // prompts sent since they were measured
}

func newProxy(router baseline.Router, c *Config) proxy {
	n := c.Replicas
	p := proxy{router: router, reads: readsCaches(router), replicas: make([]baseline.Replica, n), measured: make([]policies.Tokens, n), since: make([]policies.Tokens, n)}
	for i := range p.replicas {
		p.replicas[i].Capacity = c.KVTokens
	}
	return p
}

// readsCaches reports whether a router's choices follow what replicas have cached.
func readsCaches(r baseline.Router) bool {
	switch r.(type) {
	case baseline.LMetric, baseline.LLMD:
		return true
	}
	return false
}

// readCaches sets how much of a prompt each replica has cached, and how many requests wait there.
func (p *proxy) readCaches(replicas []*replica, q *request) {
	for i, r := range replicas {
		p.replicas[i].Cached, p.replicas[i].Waiting = 0, r.load().Waiting
		if len(q.Prefix) > 0 {
			p.replicas[i].Cached = r.cachedTokens(q.Request)
		}
	}
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

// move counts a request that has moved from a replica to its present one.
func (p *proxy) move(q *request, from int) {
	p.replicas[from].Requests--
	p.replicas[q.replica].Requests++
}

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
