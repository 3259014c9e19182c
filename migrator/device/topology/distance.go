package topology

import (
	"fmt"
	"strings"
)

// Distance is what lies between two devices of one machine. Nearer is smaller.
type Distance uint8

// The distances, with the names that nvidia-smi has for them. Values are part of
// what machines tell each other.
const (
	Same     Distance = iota + 1 // one device
	Switch                       // PIX: one PCIe switch at most
	Switches                     // PXB: several switches, no root complex
	Bridge                       // PHB: their root complex
	Node                         // NODE: root complexes of one NUMA node
	System                       // SYS: two NUMA nodes
	Far                          // not known
)

var distances = [...]struct{ short, long string }{
	Same: {"X", "the same device"}, Switch: {"PIX", "one PCIe switch"}, Switches: {"PXB", "several PCIe switches"},
	Bridge: {"PHB", "the root complex"}, Node: {"NODE", "two root complexes of one NUMA node"},
	System: {"SYS", "two NUMA nodes"}, Far: {"?", "not known"},
}

// String is the distance as nvidia-smi names it.
func (d Distance) String() string {
	if d < Same || d > Far {
		return fmt.Sprintf("distance %d", uint8(d))
	}
	return distances[d].short
}

// words is the distance for people.
func (d Distance) words() string {
	if d < Same || d > Far {
		d = Far
	}
	return distances[d].long
}

// MarshalText writes the short name.
func (d Distance) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the short name.
func (d *Distance) UnmarshalText(text []byte) error {
	for i := Same; i <= Far; i++ {
		if distances[i].short == string(text) {
			*d = i
			return nil
		}
	}
	return fmt.Errorf("no distance is called %q", text)
}

// Between is what lies between two devices, by their places in the tree of
// bridges; where that is not known, by their NUMA nodes.
func Between(a, b PCI) Distance {
	switch {
	case a.Address != "" && strings.EqualFold(a.Address, b.Address):
		return Same
	case len(a.Path) < 2 || len(b.Path) < 2:
		return apart(a.NUMA, b.NUMA)
	case a.Path[0] != b.Path[0]:
		if d := apart(a.NUMA, b.NUMA); d != Far {
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

// apart is the distance of two NUMA nodes' root complexes.
func apart(a, b int) Distance {
	switch {
	case a < 0 || b < 0:
		return Far
	case a == b:
		return Node
	}
	return System
}
