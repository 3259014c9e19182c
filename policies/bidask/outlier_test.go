package bidask_test

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

func TestExcess(t *testing.T) {
	for _, c := range []struct {
		percent         int
		own, mean, want policies.Tokens
	}{
		{0, 125, 100, 0}, // not above 25 %
		{0, 126, 100, 26},
		{25, 1250, 1000, 0},
		{25, 1251, 1000, 251},
		{50, 150, 100, 0},
		{50, 151, 100, 51},
		{0, 80, 100, 0},
		{0, 0, 0, 0},
		{0, 1, 0, 1},
		{0, policies.Unbounded, policies.Unbounded / 2, policies.Unbounded/2 + 1},
		{0, 5, -1, 0},
		{0, -1, -2, 0},
	} {
		if got := (bidask.Detector{Percent: c.percent}).Excess(c.own, c.mean); got != c.want {
			t.Errorf("%d %%: %v against %v gives %v, want %v", c.percent, c.own, c.mean, got, c.want)
		}
	}
}

// TestOracle compares with arbitrary precision.
func TestOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 20000 {
		mean := policies.Tokens(rng.Uint64() >> (1 + rng.IntN(63)))
		own := mean + policies.Tokens(rng.Int64N(int64(mean)/2+3)) - 1
		if own < 0 {
			continue // beyond the largest number
		}
		percent := 1 + rng.IntN(60)
		threshold := new(big.Rat).Mul(big.NewRat(int64(mean), 1), big.NewRat(int64(100+percent), 100))
		want := policies.Tokens(0)
		if big.NewRat(int64(own), 1).Cmp(threshold) > 0 {
			want = own - mean
		}
		if got := (bidask.Detector{Percent: percent}).Excess(own, mean); got != want {
			t.Fatalf("%d %%: %v against %v gives %v, want %v", percent, own, mean, got, want)
		}
	}
}
