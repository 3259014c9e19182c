package tokenhash_test

import (
	"testing"
	"testing/quick"

	"github.com/cascadeinfer/cascade/migrator/internal/tokenhash"
)

func TestAddGoesOn(t *testing.T) {
	check := func(a, b []uint32) bool {
		var h tokenhash.Hash
		return h.Add(a...).Add(b...) == h.Add(append(append([]uint32{}, a...), b...)...)
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
}

// TestAddDistinguishes changes, swaps, drops and duplicates each id of a sequence.
func TestAddDistinguishes(t *testing.T) {
	ids := make([]uint32, 200) // all zeros, which a weak hash ignores
	for i := range ids {
		ids[i] = uint32(i % 3)
	}
	seen := map[tokenhash.Hash]string{}
	add := func(name string, ids []uint32) {
		h := tokenhash.Hash(0).Add(ids...)
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have the same hash", name, other)
		}
		seen[h] = name
	}
	add("whole", ids)
	for i := range ids {
		add("prefix", ids[:i])
		changed := append([]uint32{}, ids...)
		changed[i] += 3
		add("changed", changed)
	}
	add("doubled", append(append([]uint32{}, ids...), ids[len(ids)-1]))
}
