package proxy

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/balance"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/route"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/upstream"
)

// state is a snapshot prepared for requests. It is immutable, except for the balancers
// of its clusters, which outlive it.
type state struct {
	listeners  map[string]*listener
	clusters   map[string]*cluster
	extensions map[string]*client.Extension
}

// listener is an LDS listener with its routes.
type listener struct {
	*client.Listener
	table *route.Table // nil while there is none: every request gets a 404
}

// cluster is a CDS cluster in use. It stays the same when the cluster is edited.
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

// apply makes new requests use a snapshot.
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
	// After the new state is in use: until then a request may still get a pool of the old
	// state and would open it again.
	p.pools.RetireUnless(func(address string, s upstream.Settings) bool { return used[endpoint{address, s}] })
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// listener prepares a listener; it reuses the old table if it is unchanged.
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
