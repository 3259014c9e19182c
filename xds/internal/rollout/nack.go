package rollout

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// handleNACK takes a node's refusal.
func (r *Rollout) handleNACK(now time.Time, e NACK) {
	g := r.groups[e.Group]
	if g == nil || g.dissenting[e.Node] {
		return
	}
	news := make(map[key]bool)
	suspects := r.suspects(g, e)
	if len(suspects) == 0 && len(e.Resources) > 0 {
		g.dissenting[e.Node] = true
		r.note(Note{Warn: true, Text: "node refuses what all others have", Group: e.Group, Node: e.Node, Why: e.Text})
		return
	}
	for _, k := range suspects {
		f := Refusal{Type: k.typ, Name: k.name, Version: k.version, Node: e.Node, Group: e.Group, Text: e.Text, At: now}
		if r.quarantine(f) {
			news[k] = true
			r.out.Refused = append(r.out.Refused, f)
			r.note(Note{Warn: true, Text: "version is quarantined", Group: e.Group, Node: e.Node, Why: f.describe()})
		}
	}
	if _, fenced := g.fenced[e.Node]; fenced && len(suspects) > 0 && len(news) == 0 && holdsAny(g.set, keysOf(suspects)) {
		return // it is shown for want of another, and whatever comes with it is refused again
	}
	// What came with it may or may not have been applied, and the server believes
	// that it was: it is sent once more, and the node, which answers after all,
	// is waited for.
	delete(g.fenced, e.Node)
	for _, res := range e.Resources {
		g.suspended[key{e.Type, res.Name, ContentHash(res.Version)}] = true
		g.suspendedSince = now
	}
	r.enforceQuarantine(now, news)
}

func keysOf(keys []key) map[key]bool {
	set := make(map[key]bool, len(keys))
	for _, k := range keys {
		set[k] = true
	}
	return set
}

// suspects are the versions that a refusal can be about: those that the node
// blames, or all that no group has. Where that leaves a choice, what the node's
// own group had acknowledged before is not meant.
func (r *Rollout) suspects(g *group, e NACK) (keys []key) {
	for _, res := range e.Resources {
		k := key{e.Type, res.Name, ContentHash(res.Version)}
		blamed := len(e.Resources) == 1 || len(e.Blamed) == 0 || slices.Contains(e.Blamed, res.Name)
		if blamed && !r.isEstablished(k) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 1 || len(e.Blamed) > 0 {
		return keys
	}
	fresh := slices.DeleteFunc(slices.Clone(keys), func(k key) bool {
		o := g.ackedSet.Get(k.typ, k.name)
		return o != nil && o.Version == k.version
	})
	if len(fresh) > 0 {
		return fresh
	}
	return keys
}

// enforceQuarantine takes back what is newly refused, wherever it is shown.
func (r *Rollout) enforceQuarantine(now time.Time, news map[key]bool) {
	if r.rolling != nil && len(news) > 0 {
		bad := holdsAny(r.rolling.table.Set, news)
		for _, g := range r.groups {
			bad = bad || g.revision == r.rolling && holdsAny(g.set, news)
		}
		if bad {
			r.failRollout(now, r.firstReason(news), true)
		}
	}
	if r.stable != nil && r.previous != nil {
		if why := r.whyUnusable(r.stable); why != "" && r.whyUnusable(r.previous) == "" {
			r.revertStable(now, why)
		}
	}
	for _, name := range r.cfg.Groups {
		if g := r.groups[name]; g.hasSet {
			r.reapply(now, g)
		}
	}
}

// firstReason tells the first of some refusals.
func (r *Rollout) firstReason(keys map[key]bool) string {
	all := slices.Collect(maps.Keys(keys))
	slices.SortFunc(all, func(a, b key) int { return cmp.Or(cmp.Compare(a.typ, b.typ), cmp.Compare(a.name, b.name)) })
	return r.quarantined[all[0]].describe()
}

// refusedRoute tells which refused routes or listener a set holds, "" for none.
func (r *Rollout) refusedRoute(s resources.Set) string {
	for _, typ := range [...]string{resources.RouteType, resources.ListenerType} {
		for _, res := range s.All(typ) {
			if f, bad := r.quarantined[keyOf(res)]; bad && routesRequests(res) {
				return f.describe()
			}
		}
	}
	return ""
}

// whyUnusable tells why an edition cannot be shown any more, "" if it can.
func (r *Rollout) whyUnusable(ed *revision) string {
	if why := r.refusedRoute(ed.table.Set); why != "" {
		return why
	}
	if _, err := r.compose(layers{routes: ed.table, newest: ed.table}, nil); err != nil {
		return err.Error()
	}
	return ""
}

// revertStable goes back to the plan before the one that all groups have: another
// server's node refuses it, or there was nobody here to do so when it went out.
func (r *Rollout) revertStable(now time.Time, why string) {
	if r.rolling != nil {
		r.revertRollout(now, "plan taken back", why)
	}
	old := r.stable
	r.failed, r.blocked = &failure{table: old.table, why: why, retryWithReplacements: true}, why
	r.stable, r.previous = r.previous, nil
	r.note(Note{Warn: true, Text: "plan taken back", Epoch: old.table.Epoch(), Why: why})
	applied := r.routesAcked(old.table.Set)
	for _, name := range r.cfg.Groups {
		if g := r.groups[name]; g.revision == old {
			g.revision = r.stable
			if applied {
				g.machine.setTarget(r.stable.table)
			} else {
				g.machine = phaseMachine{live: []*Table{r.stable.table}}
			}
			r.applyOrReset(now, g)
		}
	}
}

// routesAcked reports whether any group has acknowledged a set's routes.
func (r *Rollout) routesAcked(s resources.Set) bool {
	return slices.ContainsFunc(s.All(resources.RouteType), func(res *resources.Resource) bool {
		return routesRequests(res) && r.isEstablished(keyOf(res))
	})
}

// failRollout takes the target back from all groups that have it.
func (r *Rollout) failRollout(now time.Time, why string, admissible bool) {
	r.failed, r.blocked = &failure{table: r.rolling.table, why: why, retryWithReplacements: admissible}, why
	r.revertRollout(now, "plan taken back", why)
}

func (r *Rollout) revertRollout(now time.Time, text, why string) {
	old := r.rolling
	r.rolling = nil
	r.note(Note{Warn: why != "", Text: text, Epoch: old.table.Epoch(), Why: why})
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		if g.revision != old {
			continue
		}
		g.revision, g.reverting, g.phaseStart = r.stable, true, now
		clear(g.lateSince)
		g.machine.revertTo(r.stable.table)
		r.applyOrReset(now, g)
	}
}
