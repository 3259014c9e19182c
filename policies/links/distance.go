package links

import (
	"errors"
	"strconv"
)

// Distance is what lies between two devices of one host. A nearer one is smaller.
type Distance uint8

// The distances, with nvidia-smi's names. The values are part of the wire format.
const (
	SameDevice      Distance = iota + 1 // one device
	Switch                              // PIX: one PCIe switch at most
	Switches                            // PXB: several switches, no root complex
	RootComplex                         // PHB: their root complex
	NUMANode                            // NODE: root complexes of one NUMA node
	System                              // SYS: two NUMA nodes
	UnknownDistance                     // unknown
)

var distances = [...]struct{ short, long string }{
	SameDevice: {"X", "the same device"}, Switch: {"PIX", "one PCIe switch"}, Switches: {"PXB", "several PCIe switches"},
	RootComplex: {"PHB", "the root complex"}, NUMANode: {"NODE", "two root complexes of one NUMA node"},
	System: {"SYS", "two NUMA nodes"}, UnknownDistance: {"?", "not known"},
}

// String returns nvidia-smi's name of the distance.
func (d Distance) String() string {
	if d < SameDevice || d > UnknownDistance {
		return "distance " + strconv.Itoa(int(d))
	}
	return distances[d].short
}

// description returns the distance for operators.
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
	return errors.New("no PCIe distance is called " + strconv.Quote(string(text)))
}

// farther returns the greater of two distances; an unknown one is ignored.
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
