package adoption_test

import (
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// TestHoldOffByOthers: a rollback decided elsewhere holds off as long as
// one that the machine takes back, longer each time, and another machine can go
// on from there.
func TestHoldOffByOthers(t *testing.T) {
	c := adoption.Config{Planner: partition.Exact{}, HoldOff: 60, HoldOffMax: 150}
	m, err := adoption.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if until, length := m.HoldOffState(); until != 0 || length != 0 {
		t.Errorf("a new machine is held off until %v for %v", until, length)
	}
	for i, want := range []float64{60, 120, 150, 150} {
		now := float64(1000 * i)
		m.HoldOff(now)
		if until, length := m.HoldOffState(); until != now+want || length != want {
			t.Errorf("rollback %d: held off until %v for %v, want %v", i, until, length, want)
		}
	}
	heir, err := adoption.New(c)
	if err != nil {
		t.Fatal(err)
	}
	heir.RestoreHoldOff(2060, 60)
	heir.HoldOff(2100)
	if until, length := heir.HoldOffState(); until != 2220 || length != 120 {
		t.Errorf("the heir is held off until %v for %v", until, length)
	}
	heir.RestoreHoldOff(0, 0)
	if until, length := heir.HoldOffState(); until != 0 || length != 0 {
		t.Errorf("forgiven, and held off until %v for %v", until, length)
	}
}

func TestScale(t *testing.T) {
	p := policies.Partition{Cuts: []policies.Tokens{100, 900}, Counts: []int{2, 1, 1}}
	for n, want := range map[int][]int{8: {4, 2, 2}, 5: {3, 1, 1}, 4: {2, 1, 1}, 3: {1, 1, 1}, 2: {2}} {
		got := adoption.ScaleCounts(p, n)
		if !slices.Equal(got.Counts, want) || len(got.Cuts) != len(want)-1 {
			t.Errorf("%d replicas: %v at %v, want %v", n, got.Counts, got.Cuts, want)
		}
	}
	if !slices.Equal(p.Counts, []int{2, 1, 1}) {
		t.Error("the partition was changed")
	}
}
