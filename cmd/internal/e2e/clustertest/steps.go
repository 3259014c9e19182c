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
		return cmp.Or(compareBools(a.current, b.current), compareBools(a.ready, b.ready), cmp.Compare(b.name, a.name))
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

// stepStatefulSet returns the ordinals of the Pods that a StatefulSet creates now, and which Pod it deletes: one at a
// time, the last first, while all others are ready.
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
	for _, m := range slices.Backward(slices.Sorted(maps.Keys(byName))) {
		if !byName[m].terminates {
			return create, m
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

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
