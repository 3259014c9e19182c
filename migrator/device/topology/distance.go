package topology

import (
	"strings"

	"github.com/cascadeinfer/cascade/policies/links"
)

// Distance is the distance between two devices of one host. Nearer is smaller.
type Distance = links.Distance

// The distances, with nvidia-smi's names.
const (
	Same     = links.SameDevice
	Switch   = links.Switch
	Switches = links.Switches
	Bridge   = links.RootComplex
	Node     = links.NUMANode
	System   = links.System
	Far      = links.UnknownDistance
)

// Between returns the distance between two devices, by their places in the tree of
// bridges, or, if those are unknown, by their NUMA nodes.
func Between(a, b PCI) Distance {
	switch {
	case a.Address != "" && strings.EqualFold(a.Address, b.Address):
		return Same
	case len(a.Path) < 2 || len(b.Path) < 2:
		return numaDistance(a.NUMA, b.NUMA)
	case a.Path[0] != b.Path[0]:
		if d := numaDistance(a.NUMA, b.NUMA); d != Far {
			return d
		}
		return System // their distance is unknown: assume the farthest
	}
	common := 1
	for common < min(len(a.Path), len(b.Path)) && a.Path[common] == b.Path[common] {
		common++
	}
	switch left := max(len(a.Path), len(b.Path)) - common; {
	case left == 0:
		return Same
	case common == 1:
		return Bridge
	case left <= 2: // the switch's port, and the device
		return Switch
	}
	return Switches
}

// numaDistance returns the distance of the root complexes of two NUMA nodes.
func numaDistance(a, b int) Distance {
	switch {
	case a < 0 || b < 0:
		return Far
	case a == b:
		return Node
	}
	return System
}
