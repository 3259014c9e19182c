package links

import "testing"

// TestFarther compares with the definition, for every pair of valid values: the greater of the
// known ones. The same device and an unknown one are unknown.
func TestFarther(t *testing.T) {
	known := func(d Distance) bool { return d >= SameDevice && d < UnknownDistance }
	for a := range UnknownDistance + 1 {
		for b := range UnknownDistance + 1 {
			want := UnknownDistance
			for _, d := range []Distance{a, b} {
				if known(d) && (want == UnknownDistance || d > want) {
					want = d
				}
			}
			if want == SameDevice && !(known(a) && known(b)) {
				want = UnknownDistance
			}
			if got := farther(a, b); got != want {
				t.Errorf("the farther of %v and %v is %v, want %v", a, b, got, want)
			}
		}
	}
	for d := range UnknownDistance + 2 {
		if got, want := d.description(), distances[UnknownDistance].long; (got == want) == known(d) {
			t.Errorf("%v is described as %q", d, got)
		}
	}
}
