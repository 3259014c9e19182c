package balance

import (
	"math"
	"strconv"
	"testing"
)

// owner returns the member that a key belongs to, −1 if none has a weight.
func owner(key uint64, weights []float64) int {
	best, top := -1, Rank{}
	for i, w := range weights {
		if w == 0 {
			continue
		}
		if r := RankOf(key, Hash("member "+strconv.Itoa(i)), w); best < 0 || r.Above(top) {
			best, top = i, r
		}
	}
	return best
}

// TestShares checks that members get keys in proportion to their weights, and that a member
// that leaves moves its own keys alone.
func TestShares(t *testing.T) {
	const keys = 40_000
	for _, weights := range [][]float64{{1, 1, 1, 1}, {25, 400, 100, 100}, {3, 0, 5}} {
		sum := 0.0
		for _, w := range weights {
			sum += w
		}
		counts := make([]float64, len(weights))
		for n := range keys {
			key := Hash(strconv.Itoa(n))
			i := owner(key, weights)
			counts[i]++
			if i == 0 {
				continue
			}
			fewer := append([]float64{0}, weights[1:]...)
			if now := owner(key, fewer); now != i {
				t.Fatalf("weights %v: key %d moves from %d to %d when 0 leaves", weights, n, i, now)
			}
		}
		for i, w := range weights {
			share := w / sum
			if d := math.Abs(counts[i] - keys*share); d > 5*math.Sqrt(keys*share*(1-share)) {
				t.Errorf("weights %v: member %d has %v of %d keys", weights, i, counts[i], keys)
			}
		}
	}
}

// TestAbove checks the comparison without logarithms against the scores.
func TestAbove(t *testing.T) {
	for n := range uint64(10_000) {
		a, b := RankOf(n, 1, 100), RankOf(n, 2, 100)
		if a.Above(b) != (a.score() > b.score()) && a.score() != b.score() {
			t.Fatalf("%+v above %+v: %v", a, b, a.Above(b))
		}
		if a.Above(a) {
			t.Fatalf("%+v is above itself", a)
		}
	}
	for _, bits := range []uint64{0, 1<<52 - 1} {
		if s := (Rank{bits, 1}).score(); math.IsInf(s, 0) || math.IsNaN(s) || s <= 0 {
			t.Errorf("the score of %d is %v", bits, s)
		}
	}
}
