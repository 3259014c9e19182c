package length

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// TestCutBytes checks that a boundary in bytes cuts exactly like the boundary in
// tokens.
func TestCutBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	ratios := []Ratio{0, MinRatio, 999, 1000, 1001, DefaultRatio, 4321, MaxRatio, MaxRatio + 1}
	cuts := []policies.Tokens{0, 1, 2, 3, 999, 1000, 1001, 1 << 20, 1<<53 + 1, policies.Unbounded - 1}
	for range 500 {
		ratios = append(ratios, MinRatio+Ratio(r.Int64N(int64(MaxRatio-MinRatio))))
		cuts = append(cuts, policies.Tokens(r.Int64N(1<<r.IntN(40))))
	}
	for _, ratio := range ratios {
		e := Estimator{ratio}
		for _, cut := range cuts {
			at := e.CutBytes(cut)
			for _, b := range []int64{0, 1, at - 2, at - 1, at, at + 1, at + 2, r.Int64()} {
				if b < 0 || b == math.MaxInt64 {
					continue
				}
				if got := e.FromContentLength(b); (got < cut) != (b < at) {
					t.Fatalf("ratio %d, cut %d at byte %d: %d bytes are %d tokens", ratio, cut, at, b, got)
				}
			}
		}
	}
	if got := (Estimator{}).CutBytes(policies.Unbounded); got != math.MaxInt64 {
		t.Errorf("the open end is at byte %d", got)
	}
}

func TestFromContentLengthIsTheFloor(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 10_000 {
		ratio, n := MinRatio+Ratio(r.Int64N(int64(MaxRatio-MinRatio))), r.Int64N(1<<(1+r.IntN(62)))
		want := new(big.Int).Mul(big.NewInt(n), big.NewInt(1000))
		want.Quo(want, big.NewInt(int64(ratio)))
		got := big.NewInt(int64((Estimator{ratio}).FromContentLength(n)))
		if want.IsInt64() && got.Cmp(want) != 0 || !want.IsInt64() && got.Int64() != math.MaxInt64 {
			t.Fatalf("%d bytes at ratio %d: %d tokens, want %d", n, ratio, got, want)
		}
	}
	if got := (Estimator{}).FromContentLength(-1); got != 0 {
		t.Errorf("a negative size has %d tokens", got)
	}
}

func TestFromBody(t *testing.T) {
	for _, c := range []struct {
		name  string
		count Count
		want  policies.Tokens
	}{
		{"text", Count{Bytes: 900, Text: 399, Found: true}, 99},
		{"ids are exact", Count{Bytes: 900, Tokens: 7, Found: true}, 7},
		{"tools beside ids", Count{Bytes: 900, Text: 40, Tokens: 7, Found: true}, 17},
		{"empty prompt", Count{Bytes: 900, Found: true}, 0},
		{"nothing found", Count{Bytes: 900, Text: 40}, 225},
		{"malformed", Count{Bytes: 900, Text: 40, Found: true, Malformed: true}, 225},
		{"saturates", Count{Text: 8, Tokens: policies.Unbounded, Found: true}, policies.Unbounded},
	} {
		if got := (Estimator{}).FromBody(c.count); got != c.want {
			t.Errorf("%s: %d tokens, want %d", c.name, got, c.want)
		}
	}
}

func TestRatio(t *testing.T) {
	for _, c := range []struct {
		x    float64
		want Ratio
	}{{4, 4000}, {3.9996, 4000}, {0, DefaultRatio}, {-1, DefaultRatio}, {math.NaN(), DefaultRatio}, {0.1, MinRatio}, {math.Inf(1), MaxRatio}} {
		if got := RatioOf(c.x); got != c.want {
			t.Errorf("RatioOf(%v) = %d, want %d", c.x, got, c.want)
		}
	}
	if got := Ratio(4321).Float(); got != 4.321 {
		t.Errorf("4321 is %v bytes a token", got)
	}
}

func TestControl(t *testing.T) {
	for name, want := range map[string]bool{
		TokensHeader: true, ModelHeader: true, StageHeader: true, "x-cascade-": true, "x-cascade-anything": true,
		"x-cascade": false, "content-length": false, "": false, "x-gateway-model-name-2": false,
	} {
		if got := IsControlHeader(name); got != want {
			t.Errorf("Control(%q) = %v", name, got)
		}
	}
}

// TestHugeCut checks the smallest cut whose bytes do not fit.
func TestHugeCut(t *testing.T) {
	e := Estimator{BytesPerToken: MaxRatio}
	if got := e.CutBytes(1 << 60); got != int64(policies.Unbounded) {
		t.Errorf("%d bytes, want the largest number", got)
	}
	if got := e.CutBytes(1 << 58); got != 1<<62 {
		t.Errorf("%d bytes, want %d", got, 1<<62)
	}
}
