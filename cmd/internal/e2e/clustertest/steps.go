package clustertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// member is a Pod of a workload, as its controller sees it.
type member struct {
	name              string
	current           bool // it has the present template
	ready, terminates bool
}

// worth orders Pods: of two, the one of less worth is deleted first.
func (m member) worth() (w int) {
	if m.current {
		w += 2
	}
	if m.ready {
		w++
	}
	return w
}

// stepDeployment returns how many Pods a Deployment creates now, and which it deletes. During an update there are at most
// surge Pods more than wanted, and at most unavailable fewer are ready.
func stepDeployment(wanted, surge, unavailable int, members []member) (create int, remove []string) {
	present := slices.DeleteFunc(slices.Clone(members), func(m member) bool { return m.terminates })
	current, ready := 0, 0
	for _, m := range present {
		if m.current {
			current++
		}
		if m.ready {
			ready++
		}
	}
	create = max(0, min(wanted-current, wanted+surge-len(present)))
	// Old ones go first, those that are not ready before others, the last by name before the first.
	slices.SortFunc(present, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.worth(), b.worth()), cmp.Compare(b.name, a.name))
	})
	old, excess := len(present)-current, len(present)-wanted
	for _, m := range present {
		if m.current && excess <= old || m.ready && ready <= wanted-unavailable {
			continue
		}
		remove = append(remove, m.name)
		excess--
		if !m.current {
			old--
		}
		if m.ready {
			ready--
		}
	}
	return create, remove
}

// stepStatefulSet returns the ordinals of the Pods that a StatefulSet creates now, and which Pod it deletes: surplus ones, one in
// each step; then old ones, the last first, while all are ready.
func stepStatefulSet(name string, wanted int, members []member) (create []int, remove string) {
	byName := map[string]member{}
	for _, m := range members {
		byName[m.name] = m
	}
	allReady := true
	for i := range wanted {
		m, ok := byName[fmt.Sprintf("%s-%d", name, i)]
		if !ok {
			create = append(create, i)
		}
		allReady = allReady && ok && m.ready && !m.terminates
		delete(byName, m.name)
	}
	// The last surplus Pod has the longest name, and of those the greatest.
	surplus := slices.SortedFunc(maps.Values(byName), func(a, b member) int {
		return cmp.Or(cmp.Compare(len(b.name), len(a.name)), cmp.Compare(b.name, a.name))
	})
	for _, m := range surplus {
		if !m.terminates {
			return create, m.name
		}
	}
	for i := wanted - 1; i >= 0 && allReady; i-- {
		for _, m := range members {
			if m.name == fmt.Sprintf("%s-%d", name, i) && !m.current {
				return create, m.name
			}
		}
	}
	return create, ""
}
