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
		least           policies.Tokens
		own, mean, want policies.Tokens
	}{
		{0, 0, 125, 100, 0}, // not above 25 %
		{0, 0, 126, 100, 26},
		{25, 0, 1250, 1000, 0},
		{25, 0, 1251, 1000, 251},
		{50, 0, 150, 100, 0},
		{50, 0, 151, 100, 51},
		{0, 30, 126, 100, 0},
		{0, 30, 130, 100, 30},
		{0, 0, 80, 100, 0},
		{0, 0, 0, 0, 0},
		{0, 0, 1, 0, 1},
		{0, 0, policies.Unbounded, policies.Unbounded / 2, policies.Unbounded/2 + 1},
		{0, 0, 5, -1, 0},
		{0, 0, -1, -2, 0},
	} {
		if got := (bidask.Detector{Percent: c.percent, MinExcess: c.least}).Excess(c.own, c.mean); got != c.want {
			t.Errorf("%d %%, least %v: %v against %v gives %v, want %v", c.percent, c.least, c.own, c.mean, got, c.want)
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

// TestMinExcess checks the least excess by what attention costs.
func TestMinExcess(t *testing.T) {
	for want, c := range map[policies.Tokens]policies.Cost{
		75_000:  {D0: 0.015, D4: 1e-7},
		1 << 40: {D0: 1, D4: 1e-300},
		4096:    {D0: 0.015},
		4097:    {D0: 8194, D4: 1},
	} {
		if got := bidask.MinExcess(c); got != want {
			t.Errorf("%+v: %v, want %v", c, got, want)
		}
	}
	if got := bidask.MinExcess(policies.Cost{D0: 0.001, D4: 1}); got != 4096 {
		t.Errorf("cheap iterations: %v", got)
	}
}
