package measure

import (
	"math"
	"math/rand/v2"
	"testing"
)

// spread is points of a law, with noise as a share.
func spread(base, token, kappa, noise float64) (out []Point) {
	rng := rand.New(rand.NewPCG(3, 4))
	add := func(tokens, longest int) {
		p := Point{Batch: 32, Tokens: tokens, Longest: longest}
		p.Seconds = (base + token*(float64(tokens)+kappa*p.Skew())) * (1 + noise*rng.NormFloat64())
		out = append(out, p)
	}
	for _, mean := range []int{2048, 4096, 8192, 16384} {
		add(32*mean, mean)
	}
	for f := 2; f <= 16; f++ {
		add(32*8192, f*8192)
	}
	return out
}

func TestFitKappa(t *testing.T) {
	for _, want := range []float64{0, 0.5, 4, 25} {
		k, err := FitKappa(spread(5e-5, 2e-9, want, 0))
		if err != nil || math.Abs(k.Kappa-want) > 1e-6 || math.Abs(k.PerToken-2e-9) > 1e-15 || math.Abs(k.Base-5e-5) > 1e-10 || k.StdErr > 1e-6 || k.Points != 19 {
			t.Errorf("κ %v: %+v, %v", want, k, err)
		}
		k, err = FitKappa(spread(5e-5, 2e-9, want, 0.01))
		if err != nil || k.StdErr <= 0 || math.Abs(k.Kappa-want) > 5*k.StdErr {
			t.Errorf("κ %v with noise: %+v, %v", want, k, err)
		}
	}
}

// The reported standard error is the real one: over many noises the fits spread by
func TestKappaError(t *testing.T) {
	exact := spread(5e-5, 2e-9, 4, 0)
	rng := rand.New(rand.NewPCG(5, 6))
	var sum, squares, reported float64
	const times = 2000
	for range times {
		noisy := append([]Point(nil), exact...)
		for i := range noisy {
			noisy[i].Seconds += 1e-5 * rng.NormFloat64()
		}
		k, err := FitKappa(noisy)
		if err != nil {
			t.Fatal(err)
		}
		sum, squares, reported = sum+k.Kappa, squares+k.Kappa*k.Kappa, reported+k.StdErr
	}
	made := math.Sqrt(squares/times - sum/times*sum/times)
	if ratio := reported / times / made; ratio < 0.9 || ratio > 1.1 {
		t.Errorf("the reported error is %v of the real one", ratio)
	}
}

func TestFitKappaRefuses(t *testing.T) {
	good := spread(1, 1, 1, 0)
	mixed := append([]Point(nil), good...)
	mixed[3].Batch++
	falls := append([]Point(nil), good...)
	for i := range falls {
		falls[i].Seconds = 1 - 1e-9*float64(falls[i].Tokens)
	}
	for name, points := range map[string][]Point{
		"none": nil, "three": good[:3], "equal lengths": good[:4], "one sum": good[4:], "two batches": mixed, "no batch": make([]Point, 5), "falling": falls,
	} {
		if k, err := FitKappa(points); err == nil {
			t.Errorf("%s: %+v", name, k)
		}
	}
}
