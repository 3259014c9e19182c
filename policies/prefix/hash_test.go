package prefix_test

import (
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies/prefix"
)

// TestExtendDistinguishes changes, drops and duplicates each id of a sequence.
func TestExtendDistinguishes(t *testing.T) {
	ids := make([]uint32, 200)
	for i := range ids {
		ids[i] = uint32(i % 3) // many zeros, which a weak hash ignores
	}
	seen := map[prefix.Hash]string{}
	add := func(name string, ids []uint32) {
		h := prefix.Hash(0).Extend(ids...)
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have the same hash", name, other)
		}
		seen[h] = name
	}
	add("whole", ids)
	for i := range ids {
		add("prefix", ids[:i])
		changed := slices.Clone(ids)
		changed[i] += 3
		add("changed", changed)
	}
	add("doubled", append(slices.Clone(ids), ids[len(ids)-1]))
}

// TestRoot checks that model, adapter and salt are distinguished, also when one continues where
// another ends.
func TestRoot(t *testing.T) {
	seen := map[prefix.Hash]bool{}
	for _, r := range [][3]string{{"", "", ""}, {"m", "", ""}, {"", "m", ""}, {"", "", "m"}, {"ab", "c", ""}, {"a", "bc", ""}, {"abc", "", ""}, {"a", "b", "c"}} {
		h := prefix.Root(r[0], r[1], r[2])
		if seen[h] {
			t.Errorf("%q has the hash of another", r)
		}
		seen[h] = true
	}
}

// TestSteps checks that steps are the hashes of the prompt's beginnings.
func TestSteps(t *testing.T) {
	ids := make([]uint32, 2*prefix.StepTokens+1)
	for i := range ids {
		ids[i] = uint32(i)
	}
	root := prefix.Root("m", "", "")
	for _, n := range []int{0, 511, 512, 1023, 1024, 1025} {
		steps := prefix.AppendSteps(nil, root, ids[:n])
		if len(steps) != n/int(prefix.StepTokens) {
			t.Errorf("%d tokens have %d steps", n, len(steps))
		}
		for i, s := range steps {
			if want := (i + 1) * int(prefix.StepTokens); int(s.Tokens) != want || s.Hash != root.Extend(ids[:want]...) {
				t.Errorf("step %d of %d tokens is %v", i, n, s)
			}
		}
	}
}
