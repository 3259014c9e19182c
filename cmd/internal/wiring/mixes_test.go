package wiring

import (
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestMixes checks that each mix has a valid flow of one request per second, within the context,
// that it is computed once, and that an unknown one is refused.
func TestMixes(t *testing.T) {
	m := new(mixes)
	edges := policies.BucketEdges(131072, bucketsPerOctave)
	short := policies.BucketEdges(8192, bucketsPerOctave)
	for _, name := range m.Names() {
		f := testkit.Must(m.Flow(name, 131072, edges))
		rate := 0.0
		for _, x := range f.Arrivals {
			rate += x
		}
		if err := f.Validate(); err != nil || math.Abs(rate-1) > 0.02 {
			t.Errorf("%s: %v requests/s, %v", name, rate, err)
		}
		if again := testkit.Must(m.Flow(name, 131072, edges)); &again.Tokens[0] != &f.Tokens[0] {
			t.Errorf("%s is computed again", name)
		}
	}
	if f := testkit.Must(m.Flow("chat", 8192, short)); len(f.Tokens) != len(short) {
		t.Errorf("%d buckets, want %d", len(f.Tokens), len(short))
	}
	_, err := m.Flow("no-such-mix", 8192, short)
	testkit.WantError(t, err, "no-such-mix")
}
