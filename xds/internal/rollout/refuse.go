package rollout

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// refuse takes a node's refusal.
func (r *Rollout) refuse(now time.Time, e Refuse) {
	g := r.groups[e.Group]
	if g == nil || g.lonely[e.Node] {
		return
	}
	news := make(map[key]bool)
	suspects := r.suspects(g, e)
	if len(suspects) == 0 && len(e.Resources) > 0 {
		g.lonely[e.Node] = true
		r.note(Note{Warn: true, Text: "node refuses what all others have", Group: e.Group, Node: e.Node, Why: e.Text})
		return
	}
	for _, k := range suspects {
		f := Refusal{Type: k.typ, Name: k.name, Version: k.version, Node: e.Node, Group: e.Group, Text: e.Text, At: now}
		if r.bar(f) {
			news[k] = true
			r.out.Refused = append(r.out.Refused, f)
			r.note(Note{Warn: true, Text: "version is quarantined", Group: e.Group, Node: e.Node, Why: f.reason()})
		}
	}
	if _, fenced := g.fenced[e.Node]; fenced && len(suspects) > 0 && len(news) == 0 && touches(g.set, keysOf(suspects)) {
		return // it is shown for want of another, and whatever comes with it is refused again
	}
	// What came with it may or may not have been applied, and the server believes
	// that it was: it is sent once more, and the node, which answers after all,
	// is waited for.
	delete(g.fenced, e.Node)
	for _, res := range e.Resources {
		g.suspended[key{e.Type, res.Name, Plain(res.Version)}] = true
		g.held = now
	}
	r.enforce(now, news)
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
func (r *Rollout) suspects(g *group, e Refuse) (keys []key) {
	for _, res := range e.Resources {
		k := key{e.Type, res.Name, Plain(res.Version)}
		blamed := len(e.Resources) == 1 || len(e.Named) == 0 || slices.Contains(e.Named, res.Name)
		if blamed && !r.established(k) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 1 || len(e.Named) > 0 {
		return keys
	}
	fresh := slices.DeleteFunc(slices.Clone(keys), func(k key) bool {
		o := g.acked.Get(k.typ, k.name)
		return o != nil && o.Version == k.version
	})
	if len(fresh) > 0 {
		return fresh
	}
	return keys
}

// enforce takes back what is newly refused, wherever it is shown.
func (r *Rollout) enforce(now time.Time, news map[key]bool) {
	if r.target != nil && len(news) > 0 {
		bad := touches(r.target.table.Set, news)
		for _, g := range r.groups {
			bad = bad || g.at == r.target && touches(g.set, news)
		}
		if bad {
			r.fail(now, r.reasonOf(news), true)
		}
	}
	if r.good != nil && r.before != nil {
		if why := r.unusable(r.good); why != "" && r.unusable(r.before) == "" {
			r.demote(now, why)
		}
	}
	for _, name := range r.cfg.Groups {
		if g := r.groups[name]; g.shown {
			r.keep(now, g)
		}
	}
}

// reasonOf tells the first of some refusals.
func (r *Rollout) reasonOf(keys map[key]bool) string {
	all := slices.Collect(maps.Keys(keys))
	slices.SortFunc(all, func(a, b key) int { return cmp.Or(cmp.Compare(a.typ, b.typ), cmp.Compare(a.name, b.name)) })
	return r.barred[all[0]].reason()
}

// steered tells which refused routes or listener a set holds, "" for none.
func (r *Rollout) steered(s resources.Set) string {
	for _, typ := range [...]string{resources.RouteType, resources.ListenerType} {
		for _, res := range s.All(typ) {
			if f, bad := r.barred[keyOf(res)]; bad && steers(res) {
				return f.reason()
			}
		}
	}
	return ""
}

// unusable tells why an edition cannot be shown any more, "" if it can.
func (r *Rollout) unusable(ed *edition) string {
	if why := r.steered(ed.table.Set); why != "" {
		return why
	}
	if _, err := r.compose(layers{routes: ed.table, newest: ed.table}, nil); err != nil {
		return err.Error()
	}
	return ""
}

// demote goes back to the plan before the one that all groups have: another
// server's node refuses it, or there was nobody here to do so when it went out.
func (r *Rollout) demote(now time.Time, why string) {
	if r.target != nil {
		r.takeBack(now, "plan taken back", why)
	}
	old := r.good
	r.failed, r.held = &failure{table: old.table, why: why, admissible: true}, why
	r.good, r.before = r.before, nil
	r.note(Note{Warn: true, Text: "plan taken back", Epoch: old.table.Epoch(), Why: why})
	applied := r.applied(old.table.Set)
	for _, name := range r.cfg.Groups {
		if g := r.groups[name]; g.at == old {
			g.at = r.good
			if applied {
				g.m.want(r.good.table)
			} else {
				g.m = machine{live: []*Table{r.good.table}}
			}
			r.force(now, g)
		}
	}
}

// applied reports whether any group has acknowledged a set's routes.
func (r *Rollout) applied(s resources.Set) bool {
	return slices.ContainsFunc(s.All(resources.RouteType), func(res *resources.Resource) bool {
		return steers(res) && r.established(keyOf(res))
	})
}

// fail takes the target back from all groups that have it.
func (r *Rollout) fail(now time.Time, why string, admissible bool) {
	r.failed, r.held = &failure{table: r.target.table, why: why, admissible: admissible}, why
	r.takeBack(now, "plan taken back", why)
}

func (r *Rollout) takeBack(now time.Time, text, why string) {
	old := r.target
	r.target = nil
	r.note(Note{Warn: why != "", Text: text, Epoch: old.table.Epoch(), Why: why})
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		if g.at != old {
			continue
		}
		g.at, g.backing, g.entered = r.good, true, now
		clear(g.since)
		g.m.back(r.good.table)
		r.force(now, g)
	}
}
