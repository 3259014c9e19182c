package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// content is one type of a set, ready to be sent. It is immutable.
type content struct {
	entries map[string]*entry
	digest  string // of all entries
}

// entry is one resource in the forms in which the protocols send it. All nodes
// share it.
type entry struct {
	*resources.Resource
	any   *anypb.Any
	delta *discoveryv3.Resource
}

// sendOrder is the order in which the types of one set are sent: a type before
// those that refer to it.
var sendOrder = []string{
	resources.SecretType, resources.ClusterType, resources.EndpointType, resources.ListenerType, resources.RouteType, resources.RoutingType,
	resources.ExtensionType,
}

// prepareSet makes a set ready to be sent. It shares contents and entries with
// the sets before it.
func prepareSet(set resources.Set, before ...*groupSet) *groupSet {
	s := &groupSet{set: set, types: make(map[string]*content)}
	for _, typ := range set.Types() {
		s.types[typ] = prepareContent(set, typ, before)
	}
	return s
}

// prepareContent makes one type of a set ready to be sent.
func prepareContent(set resources.Set, typ string, before []*groupSet) *content {
	for _, b := range before {
		if ct := b.content(typ); ct != nil && set.Equal(b.set, typ) {
			return ct
		}
	}
	all := set.All(typ)
	ct := &content{entries: make(map[string]*entry, len(all)), digest: Digest(all)}
	for _, r := range all {
		for _, b := range before {
			if e := b.content(typ).get(r.Name); e.matches(r) {
				ct.entries[r.Name] = e
				break
			}
		}
		if ct.entries[r.Name] == nil {
			a := &anypb.Any{TypeUrl: r.Type, Value: r.Body}
			ct.entries[r.Name] = &entry{
				Resource: r, any: a,
				delta: &discoveryv3.Resource{Name: r.Name, Version: r.Version, Resource: a},
			}
		}
	}
	return ct
}

// matches reports whether the entry, which may be nil, is that of the resource.
func (e *entry) matches(r *resources.Resource) bool {
	return e != nil && e.Version == r.Version && e.Unlisted == r.Unlisted
}

func (ct *content) get(name string) *entry {
	if ct == nil {
		return nil
	}
	return ct.entries[name]
}

// version returns the digest; "" for a type that the set lacks.
func (ct *content) version() string {
	if ct == nil {
		return ""
	}
	return ct.digest
}

// changedNames lists the names that differ between two contents, sorted.
func (ct *content) changedNames(old *content) []string {
	var names []string
	if ct != nil {
		for name, e := range ct.entries {
			if old.get(name) != e {
				names = append(names, name)
			}
		}
	}
	if old != nil {
		for name := range old.entries {
			if ct.get(name) == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// typesOf lists the types of two sets in the order of sending, and all known
// types if there is no old set.
func typesOf(now, old *groupSet) []string {
	all := make(map[string]bool)
	for _, s := range [...]*groupSet{now, old} {
		if s != nil {
			for typ := range s.types {
				all[typ] = true
			}
		}
	}
	types := make([]string, 0, len(all)+len(sendOrder))
	for _, typ := range sendOrder {
		if all[typ] || old == nil {
			types = append(types, typ)
			delete(all, typ)
		}
	}
	return append(types, slices.Sorted(maps.Keys(all))...)
}

// Digest identifies the state of several resources: it is the version_info of a
// SotW response. It depends only on the names and versions of the resources,
// which must be sorted by name as those of Set.All.
func Digest(rs []*resources.Resource) string {
	h := sha256.New()
	for _, r := range rs {
		h.Write([]byte(r.Name))
		h.Write([]byte{0})
		h.Write([]byte(r.Version))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
