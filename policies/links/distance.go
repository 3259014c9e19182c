package links

import (
	"errors"
	"strconv"
)

// Distance is what lies between two devices of one machine. Nearer is smaller.
type Distance uint8

// The distances, with the names that nvidia-smi has for them. Values are part of
// what machines tell each other.
const (
	SameDevice      Distance = iota + 1 // one device
	Switch                              // PIX: one PCIe switch at most
	Switches                            // PXB: several switches, no root complex
	RootComplex                         // PHB: their root complex
	NUMANode                            // NODE: root complexes of one NUMA node
	System                              // SYS: two NUMA nodes
	UnknownDistance                     // not known
)

var distances = [...]struct{ short, long string }{
	SameDevice: {"X", "the same device"}, Switch: {"PIX", "one PCIe switch"}, Switches: {"PXB", "several PCIe switches"},
	RootComplex: {"PHB", "the root complex"}, NUMANode: {"NODE", "two root complexes of one NUMA node"},
	System: {"SYS", "two NUMA nodes"}, UnknownDistance: {"?", "not known"},
}

// String is the distance as nvidia-smi names it.
func (d Distance) String() string {
	if d < SameDevice || d > UnknownDistance {
		return "distance " + strconv.Itoa(int(d))
	}
	return distances[d].short
}

// description is the distance for people.
func (d Distance) description() string {
	if d < SameDevice || d > UnknownDistance {
		d = UnknownDistance
	}
	return distances[d].long
}

// MarshalText writes the short name.
func (d Distance) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the short name.
func (d *Distance) UnmarshalText(text []byte) error {
	for i := SameDevice; i <= UnknownDistance; i++ {
		if distances[i].short == string(text) {
			*d = i
			return nil
		}
	}
	return errors.New("no distance is called " + strconv.Quote(string(text)))
}

// farther is the greater of two distances; one that is not known says nothing.
func farther(a, b Distance) Distance {
	switch {
	case a < SameDevice || a >= UnknownDistance:
		a = SameDevice
	case b < SameDevice || b >= UnknownDistance:
		b = SameDevice
	default:
		return max(a, b)
	}
	if d := max(a, b); d != SameDevice {
		return d
	}
	return UnknownDistance
}
