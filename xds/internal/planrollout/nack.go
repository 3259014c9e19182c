package planrollout

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// handleNACK records which versions a NACK may refer to, quarantines those that enough
// nodes refuse, and sends the rest of the refused response again.
func (r *Rollout) handleNACK(now time.Time, e NACK) {
	g := r.groups[e.Group]
	if g == nil || g.dissenting[e.Node] {
		return
	}
	suspects := r.suspects(g, e)
	if len(suspects) == 0 && len(e.Resources) > 0 {
		g.dissenting[e.Node] = true
		r.note(Note{Warn: true, Text: "node refused an established version", Group: e.Group, Node: e.Node, Why: e.Text})
		return
	}
	fresh := false
	for _, k := range suspects {
		if _, known := r.quarantined[k]; !known {
			f := Refusal{Type: k.typ, Name: k.name, Version: k.version, Node: e.Node, Group: e.Group, Text: e.Text, At: now}
			fresh = g.refusals.add(k, f) || fresh
		}
	}
	newlyQuarantined := r.confirmRefusals(g, e.Nodes)
	alone := g.refusals.byNode()[e.Node]
	if fresh && alone != "" {
		r.note(Note{Warn: true, Text: "node refused a version", Group: e.Group, Node: e.Node, Why: alone})
	}
	if !fresh && (g.isFenced(e.Node) || alone != "") && holdsAny(g.set, keysOf(suspects)) {
		return // it has no replacement, and every response that holds it is refused again
	}
	// The node may not have applied the rest of the response, although the server
	// counts it as delivered, so the rest is sent once more. The node has answered,
	// so the group waits for it again.
	delete(g.fenced, e.Node)
	for _, res := range e.Resources {
		k := key{e.Type, res.Name, ContentHash(res.Version)}
		if _, refused := g.refusals[k]; !refused {
			g.suspended[k], g.suspendedSince = true, now
		}
	}
	r.enforceQuarantine(now, newlyQuarantined)
}

func keysOf(keys []key) map[key]bool {
	set := make(map[key]bool, len(keys))
	for _, k := range keys {
		set[k] = true
	}
	return set
}

// suspects returns the versions that a NACK may refer to: those that the node
// blames, or all that are not established. If several remain, it omits those that
// the node's group had acknowledged before.
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
	notAcked := slices.DeleteFunc(slices.Clone(keys), func(k key) bool {
		o := g.ackedSet.Get(k.typ, k.name)
		return o != nil && o.Version == k.version
	})
	if len(notAcked) > 0 {
		return notAcked
	}
	return keys
}

// enforceQuarantine withdraws newly quarantined versions from every group, and
// fails or reverts the plans that need them.
func (r *Rollout) enforceQuarantine(now time.Time, newlyQuarantined map[key]bool) {
	if r.rolling != nil {
		bad := holdsAny(r.rolling.snapshot.Set, newlyQuarantined)
		for _, g := range r.groups {
			bad = bad || g.revision == r.rolling && holdsAny(g.set, newlyQuarantined)
		}
		if bad {
			r.failRollout(now, r.firstReason(newlyQuarantined), true)
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

// firstReason describes the first of some refusals, by type and name.
func (r *Rollout) firstReason(keys map[key]bool) string {
	return r.quarantined[sortKeys(keys)[0]].describe()
}

// sortKeys lists the keys of a map by type, name and version.
func sortKeys[V any](m map[key]V) []key {
	return slices.SortedFunc(maps.Keys(m), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.typ, b.typ), cmp.Compare(a.name, b.name), cmp.Compare(a.version, b.version))
	})
}

// refusedRoute describes the first quarantined route table, listener or followers' plan in
// a set; "" if there is none.
func (r *Rollout) refusedRoute(s resources.Set) string {
	for _, typ := range [...]string{resources.RouteType, resources.ListenerType, resources.RoutingType} {
		for _, res := range s.All(typ) {
			if f, bad := r.quarantined[keyOf(res)]; bad && routesRequests(res) {
				return f.describe()
			}
		}
	}
	return ""
}

// whyUnusable returns why a revision cannot be applied any more; "" if it can.
func (r *Rollout) whyUnusable(ed *revision) string {
	if why := r.refusedRoute(ed.snapshot.Set); why != "" {
		return why
	}
	if _, err := r.compose(layers{routes: ed.snapshot, newest: ed.snapshot}, nil); err != nil {
		return err.Error()
	}
	return ""
}

// routesAcked reports whether a group has acknowledged the routes of a set.
func (r *Rollout) routesAcked(s resources.Set) bool {
	return slices.ContainsFunc(s.All(resources.RouteType), func(res *resources.Resource) bool {
		return routesRequests(res) && r.isEstablished(keyOf(res))
	})
}
