package topology

import (
	"strings"

	"github.com/cascadeinfer/cascade/policies/links"
)

// Between returns the distance between two devices, by their places in the tree of
// bridges, or, if those are unknown, by their NUMA nodes.
func Between(a, b PCI) links.Distance {
	switch {
	case a.Address != "" && strings.EqualFold(a.Address, b.Address):
		return links.SameDevice
	case len(a.Path) < 2 || len(b.Path) < 2:
		return numaDistance(a.NUMA, b.NUMA)
	case a.Path[0] != b.Path[0]:
		if d := numaDistance(a.NUMA, b.NUMA); d != links.UnknownDistance {
			return d
		}
		return links.System // their distance is unknown: assume the farthest
	}
	common := 1
	for common < min(len(a.Path), len(b.Path)) && a.Path[common] == b.Path[common] {
		common++
	}
	switch left := max(len(a.Path), len(b.Path)) - common; {
	case left == 0:
		return links.SameDevice
	case common == 1:
		return links.RootComplex
	case left <= 2: // the switch's port, and the device
		return links.Switch
	}
	return links.Switches
}

// numaDistance returns the distance of the root complexes of two NUMA nodes.
func numaDistance(a, b int) links.Distance {
	switch {
	case a < 0 || b < 0:
		return links.UnknownDistance
	case a == b:
		return links.NUMANode
	}
	return links.System
}
