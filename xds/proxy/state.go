package proxy

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/balance"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/route"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/upstream"
)

// state is a snapshot prepared for requests. It is immutable, except that the
// clusters in it, which outlive it, learn.
type state struct {
	listeners  map[string]*listener
	clusters   map[string]*cluster
	extensions map[string]*client.Extension
}

// listener is an LDS listener with its routes.
type listener struct {
	*client.Listener
	table *route.Table // nil while there is none: every request is a 404
}

// cluster is a CDS cluster at work: it stays the same through edits.
type cluster struct {
	name     string
	view     atomic.Pointer[clusterView]
	balancer *balance.Balancer
	requests atomic.Int64 // in flight
	retries  atomic.Int64 // in flight
	metrics  *clusterMetrics
}

// clusterView is a cluster's settings.
type clusterView struct {
	*client.Cluster
	upstream upstream.Settings
}

// apply makes a snapshot the one that new requests see.
func (p *Proxy) apply(s *client.Snapshot) {
	old := p.state.Load()
	next := &state{
		listeners:  make(map[string]*listener, len(s.Listeners)),
		clusters:   make(map[string]*cluster, len(s.Clusters)),
		extensions: s.Extensions,
	}
	type endpoint struct {
		address  string
		settings upstream.Settings
	}
	used := make(map[endpoint]bool)
	for name, c := range s.Clusters {
		cl := old.clusters[name]
		if cl == nil {
			cl = &cluster{name: name, balancer: balance.New(rand.Uint64()), metrics: p.metrics.cluster(name)}
		}
		v := cl.view.Load()
		if v == nil || v.Cluster != c {
			v = &clusterView{c, upstream.Settings{
				HTTP2: c.HTTP2, MaxStreams: int(c.MaxStreams), ConnectTimeout: c.ConnectTimeout, Ping: c.Ping, PingTimeout: c.PingTimeout,
			}}
			cl.view.Store(v)
		}
		a := s.Assignment(c)
		cl.balancer.Update(c, a)
		if a != nil {
			for _, tier := range a.Priorities {
				for _, e := range tier {
					used[endpoint{e.Address, v.upstream}] = true
				}
			}
		}
		next.clusters[name] = cl
	}
	for name, l := range s.Listeners {
		t := l.Inline
		if t == nil {
			t = s.Routes[l.RouteTable]
		}
		next.listeners[name] = old.listener(name, l, t)
	}
	p.state.Store(next)
	// After the new state is in use: until then a request may still ask for a
	// pool of the old one, and would open it again.
	p.pools.RetireUnless(func(address string, s upstream.Settings) bool { return used[endpoint{address, s}] })
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// listener prepares a listener, with the table of the old one if it is the same.
func (s *state) listener(name string, l *client.Listener, t *client.RouteTable) *listener {
	was := s.listeners[name]
	out := &listener{Listener: l}
	switch {
	case t == nil:
	case was != nil && was.table != nil && was.table.RouteTable == t:
		out.table = was.table
	default:
		out.table = route.NewTable(t)
	}
	return out
}

// pool returns the connections to one of the cluster's hosts.
func (p *Proxy) pool(v *clusterView, h *balance.Host) *upstream.Pool {
	return p.pools.Get(h.Address, v.upstream)
}
