package fleet

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies/length"
)

func TestRatio(t *testing.T) {
	for _, c := range []struct{ served, learnt, want length.Ratio }{
		{4000, 0, 4000}, {4000, -1, 4000}, {4000, 4100, 4000}, {4000, 3870, 4000},
		{4000, 3200, 3225}, {4000, 5000, 5003}, {4000, 100, 505}, {4000, 1e9, 16000}, {0, 4000, 3920},
	} {
		if got := nextRatio(c.served, c.learnt); got != c.want {
			t.Errorf("nextRatio(%v, %v) = %v, want %v", c.served, c.learnt, got, c.want)
		}
	}
	// Noise of ±1 % around any value changes the served ratio at most once.
	for learnt := 1.1; learnt < 15; learnt *= 1.013 {
		served, changes := length.DefaultRatio, 0
		for i := range 50 {
			next := nextRatio(served, length.RatioOf(learnt*(1+0.01*float64(i%3-1))))
			if next != served {
				changes++
			}
			served = next
		}
		if changes > 1 {
			t.Errorf("learnt %.3f ± 1 %%: served ratio changed %d times", learnt, changes)
		}
	}
}
