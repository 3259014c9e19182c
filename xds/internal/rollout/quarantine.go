package rollout

import (
	"fmt"
	"slices"
	"strings"

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

// pardon forgets refusals of versions in a set that neither routes nor endpoints
// can do without, and that nothing stands in for. It returns why they were there.
// After a restart nothing else is known, and without its clusters a fleet would
// be shown nothing: one proxy that refuses them again stands alone.
func (q *quarantine) pardon(s resources.Set) (pardoned []Refusal) {
	q.order = slices.DeleteFunc(q.order, func(k key) bool {
		r := s.Get(k.typ, k.name)
		if r == nil || r.Version != k.version || steers(r) && k.typ == resources.RouteType ||
			k.typ == resources.EndpointType || optional(r) || q.standIn(k, resources.Set{}) != nil {
			return false
		}
		pardoned = append(pardoned, q.barred[k])
		delete(q.barred, k)
		return true
	})
	return pardoned
}

// record notes that a group has acknowledged all of a set.
func (q *quarantine) record(s resources.Set) {
	for _, typ := range s.Types() {
		for _, r := range s.All(typ) {
			at := Version{typ, r.Name}
			if Plain(r.Version) != r.Version {
				continue
			}
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

// standIn is the newest good version that is not refused, or nil. What the group
// itself has acknowledged comes first.
func (q *quarantine) standIn(k key, acked resources.Set) *resources.Resource {
	if r := acked.Get(k.typ, k.name); r != nil && Plain(r.Version) == r.Version {
		if _, bad := q.barred[keyOf(r)]; !bad {
			return r
		}
	}
	for _, r := range q.good[Version{k.typ, k.name}] {
		if _, bad := q.barred[keyOf(r)]; !bad {
			return r
		}
	}
	return nil
}

// againMark is the end of a version's name under which the same bytes are sent
// once more, to a client that was sent them beside something that it refused: it
// may not have them, and the server believes that it has.
const againMark = "+"

// again is the same resource under another version.
func again(r *resources.Resource) *resources.Resource {
	c := *r
	c.Version += againMark
	return &c
}

// Plain is the content hash that a version names.
func Plain(version string) string { return strings.TrimSuffix(version, againMark) }

// steers reports whether a resource decides where requests go: such a one is
// never replaced alone.
func steers(r *resources.Resource) bool {
	return !r.Unlisted && (r.Type == resources.RouteType || r.Type == resources.ListenerType)
}

// optional reports whether a client does without a resource: the slots of
// extensions have a default.
func optional(r *resources.Resource) bool { return r.Type == resources.ExtensionType }

// kept counts the refused versions in a set.
func (q *quarantine) kept(s resources.Set) (n int) {
	for k := range q.barred {
		if r := s.Get(k.typ, k.name); r != nil && r.Version == k.version {
			n++
		}
	}
	return n
}

// has reports whether a set holds this version of a resource.
func has(s resources.Set, r *resources.Resource) bool {
	o := s.Get(r.Type, r.Name)
	return o != nil && o.Version == r.Version
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

// holding is what a group has already.
type holding struct {
	shown     resources.Set // may stay where nothing else is known
	passed    resources.Set // stays if it is shown
	acked     resources.Set // stands in first
	suspended map[key]bool
}

// admit returns the set without what was refused: good versions stand in where
// they can. lost tells the first of those that were replaced, and that the set
// wants to be proven anew; "" when none was.
func (q *quarantine) admit(s resources.Set, h holding) (admitted resources.Set, lost string, err error) {
	if len(q.barred) == 0 && len(h.suspended) == 0 {
		return s, "", nil
	}
	for _, typ := range s.Types() {
		all := s.All(typ)
		replaced := false
		for i, r := range all {
			k := keyOf(r)
			why, bad := q.barred[k]
			switch {
			case has(h.passed, r) && has(h.shown, r):
			case !bad:
			case !steers(r) && q.standIn(k, h.acked) != nil:
				all[i], replaced = q.standIn(k, h.acked), true
				if lost == "" {
					lost = why.reason()
				}
			case optional(r):
				all[i], replaced = nil, true
				continue
			case !has(h.shown, r):
				return resources.Set{}, "", fmt.Errorf("%s", why.reason())
			}
			if r = all[i]; h.suspended[keyOf(r)] && !steers(r) {
				if _, bad := q.barred[keyOf(r)]; !bad {
					all[i], replaced = again(r), true
				}
			}
		}
		if replaced {
			all = slices.DeleteFunc(all, func(r *resources.Resource) bool { return r == nil })
			one, err := resources.NewSet(all...)
			if err != nil {
				return resources.Set{}, "", err
			}
			s = s.With(one, typ)
		}
	}
	return s, lost, nil
}

// reason tells an operator what was refused by whom.
func (f Refusal) reason() string {
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

// withhold leaves refused routes out of what a group is shown, and with whole
// also refused endpoints, where it has no other ones of the name: after a restart
// nothing else is known, and a proxy keeps those that it has.
func (q *quarantine) withhold(s, shown resources.Set, whole bool) (less resources.Set, withheld bool) {
	less = s
	for _, typ := range [...]string{resources.RouteType, resources.EndpointType} {
		all := s.All(typ)
		n := len(all)
		all = slices.DeleteFunc(all, func(r *resources.Resource) bool {
			k := keyOf(r)
			if _, bad := q.barred[k]; !bad || shown.Get(r.Type, r.Name) != nil {
				return false
			}
			return steers(r) || whole && typ == resources.EndpointType && q.standIn(k, resources.Set{}) == nil
		})
		if len(all) == n {
			continue
		}
		one, err := resources.NewSet(all...)
		if err != nil {
			return s, false
		}
		less, withheld = less.With(one, typ), true
	}
	return less, withheld
}
