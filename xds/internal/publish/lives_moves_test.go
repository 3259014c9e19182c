package publish

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/rollout"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// What can happen next in a life.

// look lets the publisher see.
func (l *life) look() {
	for _, n := range l.nodes {
		if n.excused && n.current() {
			n.excused = false
		}
		n.excuse()
	}
	select {
	case <-l.pub.timer.C:
		l.say("time passes")
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

// deliver moves one message, and reports whether there was one.
func (l *life) deliver() bool {
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
				if len(sub.up) > 0 {
					ways = append(ways, way{n, typ, false})
				}
				if len(sub.down) > 0 {
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
		w.n.apply(w.typ)
	} else {
		w.n.hear(w.typ)
	}
	return true
}

// want submits a random table.
func (l *life) want(epoch policies.Epoch, before resources.View) resources.View {
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
	s, err := toySet(v)
	if err != nil {
		l.fail("%v", err)
	}
	l.plans[fmt.Sprint("plan ", v.Plans[0].Epoch)] = v.Plans[0]
	if epoch == 1 {
		for _, typ := range simTypes {
			for _, r := range s.All(typ) {
				l.tame[r.Version] = true
			}
		}
	}
	l.say("want %v", s)
	l.wanted = l.said
	l.pub.observeNodes()
	l.pub.step(rollout.SetTarget{Table: &rollout.Table{View: v, Set: s}})
	return v
}

// calm delivers everything and lets time pass until nothing happens.
func (l *life) calm() {
	quiet := 0
	for range 60 {
		for _, n := range l.nodes {
			if !n.up {
				n.connect()
			}
		}
		for l.deliver() {
			l.look()
		}
		l.look()
		time.Sleep(time.Second)
		l.look()
		if quiet++; !l.settled() {
			quiet = 0
		}
		if quiet == 3 {
			return
		}
	}
}

// settled reports whether there is nothing to do any more.
func (l *life) settled() bool {
	for _, g := range l.pub.state.report.Groups {
		if g.Phase != rollout.Idle || len(g.Fenced) > 0 {
			return false
		}
	}
	return !slices.ContainsFunc(l.nodes, func(n *simNode) bool { return !n.current() })
}
