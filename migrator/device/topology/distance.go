package topology

import (
	"strings"

	"github.com/cascadeinfer/cascade/policies/links"
)

// Distance is what lies between two devices of one machine. Nearer is smaller.
type Distance = links.Distance

// The distances, with the names that nvidia-smi has for them.
const (
	Same     = links.SameDevice
	Switch   = links.Switch
	Switches = links.Switches
	Bridge   = links.RootComplex
	Node     = links.NUMANode
	System   = links.System
	Far      = links.UnknownDistance
)

// Between is what lies between two devices, by their places in the tree of
// bridges; where that is not known, by their NUMA nodes.
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
		return System // nothing says that they are near
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
	case left <= 2: // the switch's own port, and the device
		return Switch
	}
	return Switches
}

// numaDistance is the distance of two NUMA nodes' root complexes.
func numaDistance(a, b int) Distance {
	switch {
	case a < 0 || b < 0:
		return Far
	case a == b:
		return Node
	}
	return System
}
