package place

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// llama is roughly Llama-3-8B on an A100: 8,192 tokens take 0.9 s.
var llama = policies.Cost{D0: 0.01, D2: 1e-4, D3: 1e-9, D4: 1e-8}

// kv is the KV of a token of llama.
const kv policies.Bytes = 128 << 10

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name  string
		offer PullOffer
		want  bool
	}{
		{"a long prefix over a fast link", PullOffer{Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, true},
		{"over 10 Gbit/s: 0.86 s is no gain", PullOffer{Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabit, Cost: llama}, false},
		{"over 20 Gbit/s", PullOffer{Held: 8192, TokenBytes: kv, Rate: 20 * links.Gigabit, Cost: llama}, true},
		{"nothing held", PullOffer{TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"the own engine holds as much", PullOffer{Own: 8192, Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"the own engine holds more", PullOffer{Own: 9000, Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"the own engine lacks little", PullOffer{Own: 8100, Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"the own engine lacks half", PullOffer{Own: 4096, Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, true},
		{"a far peer", PullOffer{Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Latency: policies.Second, Cost: llama}, false},
		{"at the margin", PullOffer{Held: 8192, TokenBytes: kv, Rate: 1670 * links.Megabyte, Cost: llama}, true},
		{"beyond the margin", PullOffer{Held: 8192, TokenBytes: kv, Rate: 1600 * links.Megabyte, Cost: llama}, false},
		{"an unknown rate", PullOffer{Held: 8192, TokenBytes: kv, Cost: llama}, false},
		{"an unknown size", PullOffer{Held: 8192, Rate: links.Gigabyte, Cost: llama}, false},
		{"an unknown cost", PullOffer{Held: 8192, TokenBytes: kv, Rate: links.Gigabyte}, false},
		{"no overflow of bytes", PullOffer{Held: math.MaxInt64, TokenBytes: math.MaxInt64, Rate: 1, Cost: llama}, false},
		{"no overflow of times", PullOffer{Held: 1 << 40, TokenBytes: 1, Rate: 1, Latency: math.MaxInt64, Cost: llama}, false},
	} {
		if got := DecidePull(c.offer); got.Pull != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	got := DecidePull(PullOffer{Own: 4096, Held: 8192, TokenBytes: 1000, Rate: links.Gigabyte, Latency: 7, Cost: llama})
	// 4,096 kB at 1 GB/s, the setup and the latency; 4,096 tokens and the attention of the second half.
	want := PullDecision{Pull: true, Tokens: 4096, Transfer: 4096 + 10_000 + 7, Recompute: 459_931}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestNeverWhereRecomputeIsCheaper draws offers at random and compares the decision with exact
// arithmetic: a pull that is chosen takes less time than computing, by the margin at least.
func TestNeverWhereRecomputeIsCheaper(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pulls := 0
	for range 20_000 {
		o := PullOffer{
			Own: policies.Tokens(rng.Int64N(1 << rng.IntN(22))), Held: policies.Tokens(rng.Int64N(1 << (1 + rng.IntN(22)))),
			TokenBytes: policies.Bytes(rng.Int64N(1 << (1 + rng.IntN(24)))), Rate: links.Rate(rng.Int64N(1 << (1 + rng.IntN(42)))),
			Latency: policies.Micros(rng.Int64N(1 << rng.IntN(30))),
			Cost:    policies.Cost{D0: 0.01, D2: rng.Float64() * math.Pow(10, float64(-rng.IntN(8))), D3: rng.Float64() * 1e-9},
		}
		d := DecidePull(o)
		if !d.Pull {
			continue
		}
		pulls++
		exact := func(x float64) *big.Float { return new(big.Float).SetPrec(256).SetFloat64(x) }
		mul := func(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(256).Mul(a, b) }
		tokens := exact(float64(o.Held - o.Own))
		pull := new(big.Float).SetPrec(256).Quo(mul(tokens, exact(float64(o.TokenBytes))), exact(float64(o.Rate)))
		pull.Add(pull, mul(exact(float64(pullSetup+o.Latency)), exact(1e-6)))
		squares := exact(float64(o.Held)*float64(o.Held) - float64(o.Own)*float64(o.Own))
		compute := new(big.Float).SetPrec(256).Add(mul(tokens, exact(o.Cost.D2)), mul(squares, exact(o.Cost.D3)))
		if compute = mul(compute, exact(1-pullMargin/100.0)); o.Held <= o.Own || pull.Cmp(compute) >= 0 {
			t.Fatalf("%+v: %+v; exactly %v s, at most %v s", o, d, pull, compute)
		}
	}
	if pulls < 1000 {
		t.Errorf("only %d pulls", pulls)
	}
}

func TestAllocations(t *testing.T) {
	o := PullOffer{Held: 8192, TokenBytes: kv, Rate: links.Gigabyte, Cost: llama}
	if n := testing.AllocsPerRun(100, func() { _ = DecidePull(o) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
