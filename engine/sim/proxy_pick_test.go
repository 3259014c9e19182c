package sim

import (
	"math"
	"testing"
)

func ones(int) uint32 { return 1 }

// TestRoundRobin checks that every run of as many picks as the weights have in sum gives each replica its
// weight.
func TestRoundRobin(t *testing.T) {
	weights := []uint32{3, 0, 5, 2, 9}
	members := []int{0, 1, 2, 3} // 4 is of another stage
	r := NewRoundRobin(len(weights))
	for range 3 {
		got := make([]uint32, len(weights))
		for range 10 {
			got[r.Pick(members, func(i int) uint32 { return weights[i] })]++
		}
		if got[0] != 3 || got[1] != 0 || got[2] != 5 || got[3] != 2 || got[4] != 0 {
			t.Errorf("ten picks: %v", got)
		}
	}
	if i := r.Pick(members, func(int) uint32 { return 0 }); i != -1 {
		t.Errorf("without replicas: %d", i)
	}
}

// TestByKey checks that keys are spread equally whatever the weights are, and that a replica that leaves
// moves its own keys alone.
func TestByKey(t *testing.T) {
	const keys = 40_000
	members := []int{0, 1, 2, 3, 4}
	got := make([]int, 5)
	for key := range uint64(keys) {
		i := ByKey(members, key, func(i int) uint32 { return uint32(1 + 100*i) })
		got[i]++
		without := ByKey(members, key, func(i int) uint32 { return uint32(i % 4) }) // 0 and 4 are gone
		if i != 0 && i != 4 && without != i || without == 0 || without == 4 {
			t.Fatalf("key %d moves from %d to %d", key, i, without)
		}
	}
	for i, n := range got {
		if math.Abs(float64(n)-keys/5) > 5*math.Sqrt(keys*0.2*0.8) {
			t.Errorf("replica %d has %d of %d keys", i, n, keys)
		}
	}
	if i := ByKey(nil, 7, ones); i != -1 {
		t.Errorf("without replicas: %d", i)
	}
}
