package publish

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/rollout"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// The events of a simulation.

// observe passes the state of the nodes to the publisher.
func (l *simulation) observe() {
	for _, n := range l.nodes {
		if n.excused && n.isCurrent() {
			n.excused = false
		}
		n.updateExcused()
	}
	select {
	case <-l.pub.timer.C:
		l.logf("time passes")
		l.pub.observeNodes()
	default:
	}
	select {
	case <-l.signal:
	case <-l.pub.cfg.Ledger.Changed():
	default:
		return
	}
	l.pub.observeNodes()
}

// deliverOne delivers one message, and reports whether there was one.
func (l *simulation) deliverOne() bool {
	type way struct {
		n    *simNode
		typ  string
		down bool
	}
	var ways []way
	for _, n := range l.nodes {
		if !n.up {
			continue
		}
		for _, typ := range simTypes {
			if sub := n.subs[typ]; sub != nil {
				if len(sub.toServer) > 0 {
					ways = append(ways, way{n, typ, false})
				}
				if len(sub.toNode) > 0 {
					ways = append(ways, way{n, typ, true})
				}
			}
		}
	}
	if len(ways) == 0 {
		return false
	}
	w := ways[l.r.IntN(len(ways))]
	if w.down {
		w.n.receiveResponse(w.typ)
	} else {
		w.n.receiveRequest(w.typ)
	}
	return true
}

// submitRandom submits a random table.
func (l *simulation) submitRandom(epoch policies.Epoch, before resources.View) resources.View {
	v := before
	if epoch > 1 && l.r.IntN(3) == 0 { // health and weights
		v.Endpoints = slices.Clone(v.Endpoints)
		e := &v.Endpoints[l.r.IntN(len(v.Endpoints))]
		e.Health, e.Weight = resources.Health(l.r.IntN(2)), uint32(1+l.r.IntN(4))
	} else {
		v = resources.View{Models: []resources.Model{{Name: "m"}}}
		if l.r.IntN(4) == 0 {
			v.Settings.AccessLog = fmt.Sprint("log", epoch)
		} else {
			v.Settings = before.Settings
		}
		stages := 1 + l.r.IntN(3)
		p := policies.Plan{Model: "m", Epoch: epoch, Stages: make([]policies.Stage, stages)}
		for i := range 5 {
			if epoch > 1 && l.r.IntN(6) == 0 && i >= stages {
				continue // removed
			}
			id := policies.ReplicaID(fmt.Sprint("r", i))
			k := l.r.IntN(stages)
			if i < stages {
				k = i
			}
			p.Stages[k].Replicas = append(p.Stages[k].Replicas, id)
			v.Endpoints = append(v.Endpoints, resources.Endpoint{ID: id, Model: "m", Address: fmt.Sprint("10.0.0.", i, ":1"), Weight: 1})
		}
		v.Plans = []policies.Plan{p}
	}
	s, err := textSet(v)
	if err != nil {
		l.failf("%v", err)
	}
	l.plans[fmt.Sprint("plan ", v.Plans[0].Epoch)] = v.Plans[0]
	if epoch == 1 {
		for _, typ := range simTypes {
			for _, r := range s.All(typ) {
				l.neverRefused[r.Version] = true
			}
		}
	}
	l.logf("want %v", s)
	l.wanted = l.said
	l.pub.observeNodes()
	l.pub.step(rollout.SetTarget{Table: &rollout.Table{View: v, Set: s}})
	return v
}

// settle delivers all messages and advances the time until nothing happens.
func (l *simulation) settle() {
	quiet := 0
	for range 60 {
		for _, n := range l.nodes {
			if !n.up {
				n.connect()
			}
		}
		for l.deliverOne() {
			l.observe()
		}
		l.observe()
		time.Sleep(time.Second)
		l.observe()
		if quiet++; !l.isSettled() {
			quiet = 0
		}
		if quiet == 3 {
			return
		}
	}
}

// isSettled reports whether there is nothing left to do.
func (l *simulation) isSettled() bool {
	for _, g := range l.pub.state.report.Groups {
		if g.Phase != rollout.Idle || len(g.Fenced) > 0 {
			return false
		}
	}
	return !slices.ContainsFunc(l.nodes, func(n *simNode) bool { return !n.isCurrent() })
}
