package sim

import "testing"

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
