package planrollout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// key identifies one version of one resource.
type key struct{ typ, name, version string }

func keyOf(r *resources.Resource) key { return key{r.Type, r.Name, r.Version} }

// maxQuarantined bounds the quarantined versions. The oldest is dropped first.
const maxQuarantined = 1024

// versionTracker holds the quarantined versions and the good ones that can
// replace them.
type versionTracker struct {
	quarantined     map[key]Refusal
	order           []key  // oldest first
	quarantineCount uint64 // versions that were ever quarantined
	// goodVersions holds, by type and name, the last versions that whole groups
	// have acknowledged, newest first.
	goodVersions map[Version][]*resources.Resource
}

// maxGoodVersions bounds the good versions of one resource.
const maxGoodVersions = 3

func newVersionTracker() versionTracker {
	return versionTracker{quarantined: make(map[key]Refusal), goodVersions: make(map[Version][]*resources.Resource)}
}

// quarantine adds a refusal, and reports whether it is new.
func (q *versionTracker) quarantine(f Refusal) bool {
	k := key{f.Type, f.Name, f.Version}
	if _, ok := q.quarantined[k]; ok || f.Version == "" {
		return false
	}
	q.quarantined[k] = f
	q.quarantineCount++
	q.order = append(q.order, k)
	if len(q.order) > maxQuarantined {
		delete(q.quarantined, q.order[0])
		q.order = slices.Delete(q.order, 0, 1)
	}
	return true
}

// releaseIrreplaceable releases quarantined versions of a set that no good
// version can replace and without which routes or endpoints are useless, and
// returns their refusals. After a restart no other version is known, and
// without its clusters a fleet would be sent nothing at all; a single proxy
// that refuses them again is fenced.
func (q *versionTracker) releaseIrreplaceable(s resources.Set) (released []Refusal) {
	q.order = slices.DeleteFunc(q.order, func(k key) bool {
		r := s.Get(k.typ, k.name)
		if r == nil || r.Version != k.version || routesRequests(r) && k.typ != resources.ListenerType ||
			k.typ == resources.EndpointType || isOptional(r) || q.replacement(k, resources.Set{}) != nil {
			return false
		}
		released = append(released, q.quarantined[k])
		delete(q.quarantined, k)
		return true
	})
	return released
}

// recordAcked records that a group has acknowledged the whole set, except the versions
// that a node of it refuses.
func (q *versionTracker) recordAcked(s resources.Set, refused refusals) {
	for _, typ := range s.Types() {
		for _, r := range s.All(typ) {
			at := Version{typ, r.Name}
			if _, bad := refused[keyOf(r)]; bad || ContentHash(r.Version) != r.Version {
				continue
			}
			if have := q.goodVersions[at]; len(have) > 0 && have[0].Version == r.Version {
				continue
			}
			rest := slices.DeleteFunc(q.goodVersions[at], func(o *resources.Resource) bool { return o.Version == r.Version })
			rest = slices.Insert(rest, 0, r)
			q.goodVersions[at] = rest[:min(len(rest), maxGoodVersions)]
		}
	}
}

// isEstablished reports whether a whole group has recently acknowledged the
// version.
func (q *versionTracker) isEstablished(k key) bool {
	return slices.ContainsFunc(q.goodVersions[Version{k.typ, k.name}], func(r *resources.Resource) bool { return r.Version == k.version })
}

// replacement returns the newest good version that is not quarantined, or nil.
// Versions that the group itself has acknowledged come first.
func (q *versionTracker) replacement(k key, acked resources.Set) *resources.Resource {
	if r := acked.Get(k.typ, k.name); r != nil && ContentHash(r.Version) == r.Version {
		if _, bad := q.quarantined[keyOf(r)]; !bad {
			return r
		}
	}
	for _, r := range q.goodVersions[Version{k.typ, k.name}] {
		if _, bad := q.quarantined[keyOf(r)]; !bad {
			return r
		}
	}
	return nil
}

// resendMark is the suffix of a version under which the same bytes are sent
// once more. A client that was sent them in a response that it refused may not
// have applied them, although the server counts them as delivered.
const resendMark = "+"

// resendVersion returns the same resource under another version.
func resendVersion(r *resources.Resource) *resources.Resource {
	c := *r
	c.Version += resendMark
	return &c
}

// ContentHash returns the content hash in a version.
func ContentHash(version string) string { return strings.TrimSuffix(version, resendMark) }

// routesRequests reports whether a resource decides where requests are routed. Such
// a resource is never replaced alone.
func routesRequests(r *resources.Resource) bool {
	return !r.Unlisted && (r.Type == resources.RouteType || r.Type == resources.ListenerType || r.Type == resources.RoutingType)
}

// isOptional reports whether a client can do without a resource: the extension
// configs of policy slots have a default.
func isOptional(r *resources.Resource) bool { return r.Type == resources.ExtensionType }

// countQuarantined counts the quarantined versions in a set.
func (q *versionTracker) countQuarantined(s resources.Set) (n int) {
	for k := range q.quarantined {
		if r := s.Get(k.typ, k.name); r != nil && r.Version == k.version {
			n++
		}
	}
	return n
}

// holdsVersion reports whether a set holds this version of a resource.
func holdsVersion(s resources.Set, r *resources.Resource) bool {
	o := s.Get(r.Type, r.Name)
	return o != nil && o.Version == r.Version
}

// holdsAny reports whether a set holds one of the versions.
func holdsAny(s resources.Set, keys map[key]bool) bool {
	for k := range keys {
		if r := s.Get(k.typ, k.name); r != nil && r.Version == k.version {
			return true
		}
	}
	return false
}

// groupSets are the sets that a group already has.
type groupSets struct {
	applied   resources.Set // may stay if no other version is known
	passed    resources.Set // stays if it is applied
	acked     resources.Set // preferred as replacements
	suspended map[key]bool
}

// replaceRefused returns the set with quarantined versions replaced by good
// ones where possible. lost describes the first replaced version, in which case
// the set has to be proven anew; it is "" if none was replaced.
func (q *versionTracker) replaceRefused(s resources.Set, h groupSets) (admitted resources.Set, lost string, err error) {
	if len(q.quarantined) == 0 && len(h.suspended) == 0 {
		return s, "", nil
	}
	for _, typ := range s.Types() {
		all := s.All(typ)
		replaced := false
		for i, r := range all {
			k := keyOf(r)
			why, bad := q.quarantined[k]
			switch {
			case holdsVersion(h.passed, r) && holdsVersion(h.applied, r):
			case !bad:
			case !routesRequests(r) && q.replacement(k, h.acked) != nil:
				all[i], replaced = q.replacement(k, h.acked), true
				if lost == "" {
					lost = why.describe()
				}
			case isOptional(r):
				all[i], replaced = nil, true
				continue
			case !holdsVersion(h.applied, r):
				return resources.Set{}, "", fmt.Errorf("%s", why.describe())
			}
			if r = all[i]; h.suspended[keyOf(r)] && !routesRequests(r) {
				if _, bad := q.quarantined[keyOf(r)]; !bad {
					all[i], replaced = resendVersion(r), true
				}
			}
		}
		if replaced {
			all = slices.DeleteFunc(all, func(r *resources.Resource) bool { return r == nil })
			one, err := resources.NewSet(all...)
			if err != nil {
				return resources.Set{}, "", err
			}
			s = s.WithTypes(one, typ)
		}
	}
	return s, lost, nil
}

// describe describes which resource was refused by which node, and why.
func (f Refusal) describe() string {
	return fmt.Sprintf("%s %s refused by %s: %s", typeNoun(f.Type), f.Name, f.Node, f.Text)
}

// typeNoun returns the name of a type in messages.
func typeNoun(typ string) string {
	switch typ {
	case resources.RouteType:
		return "route table"
	case resources.ListenerType:
		return "listener"
	case resources.ClusterType:
		return "cluster"
	case resources.EndpointType:
		return "endpoints"
	case resources.RoutingType:
		return "plan"
	}
	return "resource"
}

// omitRefused leaves quarantined routes out of a group's set, and with withEndpoints
// also quarantined endpoints, where the group has no other version of them:
// after a restart none is known, and a proxy keeps those that it has.
func (q *versionTracker) omitRefused(s, applied resources.Set, withEndpoints bool) (kept resources.Set, omitted bool) {
	kept = s
	for _, typ := range [...]string{resources.RouteType, resources.RoutingType, resources.EndpointType} {
		all := s.All(typ)
		n := len(all)
		all = slices.DeleteFunc(all, func(r *resources.Resource) bool {
			k := keyOf(r)
			if _, bad := q.quarantined[k]; !bad || applied.Get(r.Type, r.Name) != nil {
				return false
			}
			return routesRequests(r) || withEndpoints && typ == resources.EndpointType && q.replacement(k, resources.Set{}) == nil
		})
		if len(all) == n {
			continue
		}
		one, err := resources.NewSet(all...)
		if err != nil {
			return s, false
		}
		kept, omitted = kept.WithTypes(one, typ), true
	}
	return kept, omitted
}
