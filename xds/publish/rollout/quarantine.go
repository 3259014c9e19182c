package rollout

import (
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// key is one version of one resource.
type key struct{ typ, name, version string }

func keyOf(r *resources.Resource) key { return key{r.Type, r.Name, r.Version} }

// maxBarred bounds the versions that are remembered as refused. The oldest is
// forgotten first.
const maxBarred = 1024

// quarantine is what was refused, and what can stand in for it.
type quarantine struct {
	barred map[key]Refusal
	order  []key  // oldest first
	bars   uint64 // how many there ever were
	// good are the last versions of every resource that whole groups have
	// acknowledged, newest first.
	good map[Version][]*resources.Resource // by type and name
}

// kept is how many good versions of a resource are remembered.
const kept = 3

func newQuarantine() quarantine {
	return quarantine{barred: make(map[key]Refusal), good: make(map[Version][]*resources.Resource)}
}

// bar adds a refusal, and reports whether it is news.
func (q *quarantine) bar(f Refusal) bool {
	k := key{f.Type, f.Name, f.Version}
	if _, ok := q.barred[k]; ok || f.Version == "" {
		return false
	}
	q.barred[k] = f
	q.bars++
	q.order = append(q.order, k)
	if len(q.order) > maxBarred {
		delete(q.barred, q.order[0])
		q.order = slices.Delete(q.order, 0, 1)
	}
	return true
}

// record notes that a group has acknowledged all of a set.
func (q *quarantine) record(s resources.Set) {
	for _, typ := range s.Types() {
		for _, r := range s.All(typ) {
			at := Version{typ, r.Name}
			if have := q.good[at]; len(have) > 0 && have[0].Version == r.Version {
				continue
			}
			rest := slices.DeleteFunc(q.good[at], func(o *resources.Resource) bool { return o.Version == r.Version })
			rest = slices.Insert(rest, 0, r)
			q.good[at] = rest[:min(len(rest), kept)]
		}
	}
}

// established reports whether a whole group has acknowledged the version lately.
func (q *quarantine) established(k key) bool {
	return slices.ContainsFunc(q.good[Version{k.typ, k.name}], func(r *resources.Resource) bool { return r.Version == k.version })
}

// standIn is the newest good version that is not refused, or nil.
func (q *quarantine) standIn(k key, suspended map[key]bool) *resources.Resource {
	for _, r := range q.good[Version{k.typ, k.name}] {
		if _, bad := q.barred[keyOf(r)]; !bad && !suspended[keyOf(r)] {
			return r
		}
	}
	return nil
}

// steers reports whether a resource decides where requests go: such a one is
// never replaced alone.
func steers(r *resources.Resource) bool {
	return !r.Unlisted && (r.Type == resources.RouteType || r.Type == resources.ListenerType)
}

// touches reports whether a set holds one of the versions.
func touches(s resources.Set, keys map[key]bool) bool {
	for k := range keys {
		if r := s.Get(k.typ, k.name); r != nil && r.Version == k.version {
			return true
		}
	}
	return false
}

// admit returns the set without what was refused: good versions stand in where
// they can. shown is what the group has on show already, and may keep where
// nothing else is known; it is nil for a set that nobody has. The second result
// says that the set is not the one that was given, and wants to be proven.
func (q *quarantine) admit(s resources.Set, shown *resources.Set, suspended map[key]bool) (resources.Set, bool, error) {
	if len(q.barred) == 0 && len(suspended) == 0 {
		return s, false, nil
	}
	changed := false
	for _, typ := range s.Types() {
		all := s.All(typ)
		differs := false
		for i, r := range all {
			k := keyOf(r)
			why, bad := q.barred[k]
			if !bad && (!suspended[k] || steers(r)) {
				continue
			}
			if !steers(r) {
				if in := q.standIn(k, suspended); in != nil {
					all[i], differs = in, true
					continue
				}
			}
			if shown != nil {
				if has := shown.Get(typ, r.Name); has != nil && has.Version == r.Version {
					continue
				}
			}
			return resources.Set{}, false, fmt.Errorf("%s", why.reason())
		}
		if differs {
			changed = true
			one, err := resources.NewSet(all...)
			if err != nil {
				return resources.Set{}, false, err
			}
			s = s.With(one, typ)
		}
	}
	return s, changed, nil
}

// reason tells an operator what was refused by whom.
func (f Refusal) reason() string {
	if f.Version == "" {
		return "a resource was refused beside another one"
	}
	return fmt.Sprintf("%s %s refused by %s: %s", noun(f.Type), f.Name, f.Node, f.Text)
}

// noun is what a type is called.
func noun(typ string) string {
	switch typ {
	case resources.RouteType:
		return "route table"
	case resources.ListenerType:
		return "listener"
	case resources.ClusterType:
		return "cluster"
	case resources.EndpointType:
		return "endpoints"
	}
	return "resource"
}

// withhold leaves refused routes out of what a group is shown, where it has no
// other ones of the name: after a restart nothing else is known, and a proxy
// keeps the routes that it has.
func (q *quarantine) withhold(s, shown resources.Set) (resources.Set, bool) {
	all := s.All(resources.RouteType)
	n := len(all)
	all = slices.DeleteFunc(all, func(r *resources.Resource) bool {
		_, bad := q.barred[keyOf(r)]
		return bad && steers(r) && shown.Get(r.Type, r.Name) == nil
	})
	if len(all) == n {
		return s, false
	}
	one, err := resources.NewSet(all...)
	if err != nil {
		return s, false
	}
	return s.With(one, resources.RouteType), true
}
