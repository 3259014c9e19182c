package publish

import (
	"cmp"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Status is what is shown, and to whom.
type Status struct {
	Phase string         // idle, add or flip
	Epoch policies.Epoch // of the routes that are shown
	// Err says why the last view, or its phase, is not shown; nil when it is.
	Err   error
	Nodes []Node // sorted by id
}

// Node is one proxy or gRPC client, by its node id, whatever streams it has.
type Node struct {
	ID, Cluster string
	Connected   bool
	Since       time.Time      // connected or gone since then
	Epoch       policies.Epoch // of the newest plan whose routes it has acknowledged; 0 if unknown
	Current     bool           // it has acknowledged everything that is shown
	Fenced      bool           // it was late, and is not waited for
	Observer    bool           // it routes nothing, and is never waited for
	Types       map[string]NodeType
	NACKs       uint64
	LastError   string // of its last NACK, shortened
	LastErrorAt time.Time
}

// NodeType is a node's state for one resource type, which is named by the
// last word of its type URL.
type NodeType struct {
	Acked   int // resources that it has acknowledged
	Pending int // responses that it was sent and has not answered
}

// Status returns the present state.
func (p *Publisher) Status() Status {
	p.mu.Lock()
	st := p.state
	tables := slices.Clone(p.state.tables)
	fenced := make(map[string]bool, len(p.state.fenced))
	for id := range p.state.fenced {
		fenced[id] = true
	}
	p.mu.Unlock()
	s := Status{Phase: st.phase.String(), Epoch: st.epoch, Err: st.err}
	everything := newVersions(st.shown, gated)
	routes := make([]versions, len(tables))
	for i, t := range tables {
		routes[i] = newVersions(t.Set, []string{resources.RouteType})
	}
	l := p.cfg.Ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.nodes {
		out := Node{
			ID: n.id, Cluster: n.cluster, Connected: len(n.streams) > 0, Since: n.since,
			Fenced: fenced[n.id], Observer: n.observes(), NACKs: n.nacks, LastError: n.lastError, LastErrorAt: n.errorAt,
			Current: len(n.streams) > 0 && !n.behind(everything), Types: make(map[string]NodeType),
		}
		routed := false
		for _, stream := range n.streams {
			for typ, sub := range stream.types {
				t := out.Types[shortType(typ)]
				t.Acked += len(sub.applied)
				t.Pending += len(sub.sent)
				out.Types[shortType(typ)] = t
				routed = routed || typ == resources.RouteType
			}
		}
		for i := len(tables) - 1; routed && i >= 0; i-- {
			if !n.behind(routes[i]) {
				out.Epoch = epochOf(tables[i])
				break
			}
		}
		s.Nodes = append(s.Nodes, out)
	}
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return s
}
