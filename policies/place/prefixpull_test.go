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
		name   string
		policy PullRule
		offer  PullOffer
		want   bool
	}{
		{"a long prefix over a fast link", PullRule{}, PullOffer{Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, true},
		{"over 10 Gbit/s: 0.86 s is no gain", PullRule{}, PullOffer{Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabit, Cost: llama}, false},
		{"over 20 Gbit/s", PullRule{}, PullOffer{Held: 8192, TokenBytes: kv, Rate: 20 * links.Gigabit, Cost: llama}, true},
		{"nothing held", PullRule{}, PullOffer{TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"the own engine holds as much", PullRule{}, PullOffer{Own: 8192, Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"the own engine holds more", PullRule{}, PullOffer{Own: 9000, Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"the own engine lacks little", PullRule{}, PullOffer{Own: 8100, Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"the own engine lacks half", PullRule{}, PullOffer{Own: 4096, Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, true},
		{"a slow peer", PullRule{Setup: 700_000}, PullOffer{Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Cost: llama}, false},
		{"a far peer", PullRule{}, PullOffer{Held: 8192, TokenBytes: kv, Rate: 10 * links.Gigabyte, Latency: policies.Second, Cost: llama}, false},
		{"a small margin", PullRule{Margin: 1}, PullOffer{Held: 8192, TokenBytes: kv, Rate: 1300 * links.Megabyte, Cost: llama}, true},
		{"a large margin", PullRule{Margin: 80}, PullOffer{Held: 8192, TokenBytes: kv, Rate: 2500 * links.Megabyte, Cost: llama}, false},
		{"an unknown rate", PullRule{}, PullOffer{Held: 8192, TokenBytes: kv, Cost: llama}, false},
		{"an unknown size", PullRule{}, PullOffer{Held: 8192, Rate: links.Gigabyte, Cost: llama}, false},
		{"an unknown cost", PullRule{}, PullOffer{Held: 8192, TokenBytes: kv, Rate: links.Gigabyte}, false},
		{"no overflow of bytes", PullRule{}, PullOffer{Held: math.MaxInt64, TokenBytes: math.MaxInt64, Rate: 1, Cost: llama}, false},
		{"no overflow of times", PullRule{Setup: math.MaxInt64}, PullOffer{Held: 1 << 40, TokenBytes: 1, Rate: 1, Latency: math.MaxInt64, Cost: llama}, false},
	} {
		if got := c.policy.Decide(c.offer); got.Pull != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	got := PullRule{}.Decide(PullOffer{Own: 4096, Held: 8192, TokenBytes: 1000, Rate: links.Gigabyte, Latency: 7, Cost: llama})
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
		p := PullRule{Setup: policies.Micros(rng.Int64N(1 << rng.IntN(40))), Margin: rng.IntN(120) - 10}
		o := PullOffer{
			Own: policies.Tokens(rng.Int64N(1 << rng.IntN(22))), Held: policies.Tokens(rng.Int64N(1 << (1 + rng.IntN(22)))),
			TokenBytes: policies.Bytes(rng.Int64N(1 << (1 + rng.IntN(24)))), Rate: links.Rate(rng.Int64N(1 << (1 + rng.IntN(42)))),
			Latency: policies.Micros(rng.Int64N(1 << rng.IntN(30))),
			Cost:    policies.Cost{D0: 0.01, D2: rng.Float64() * math.Pow(10, float64(-rng.IntN(8))), D3: rng.Float64() * 1e-9},
		}
		d := p.Decide(o)
		if !d.Pull {
			continue
		}
		pulls++
		exact := func(x float64) *big.Float { return new(big.Float).SetPrec(256).SetFloat64(x) }
		mul := func(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(256).Mul(a, b) }
		tokens := exact(float64(o.Held - o.Own))
		pull := new(big.Float).SetPrec(256).Quo(mul(tokens, exact(float64(o.TokenBytes))), exact(float64(o.Rate)))
		pull.Add(pull, mul(exact(float64(p.Setup+o.Latency)), exact(1e-6)))
		squares := exact(float64(o.Held)*float64(o.Held) - float64(o.Own)*float64(o.Own))
		compute := new(big.Float).SetPrec(256).Add(mul(tokens, exact(o.Cost.D2)), mul(squares, exact(o.Cost.D3)))
		margin := 1.0
		if p.Margin > 0 && p.Margin < 100 {
			margin = 1 - float64(p.Margin)/100
		}
		if compute = mul(compute, exact(margin)); o.Held <= o.Own || pull.Cmp(compute) >= 0 {
			t.Fatalf("%+v pulls with %+v: %+v; exactly %v s, at most %v s", p, o, d, pull, compute)
		}
	}
	if pulls < 1000 {
		t.Errorf("only %d pulls", pulls)
	}
}

// Fewer tokens, slower links and cheaper engines never turn a recompute into a pull.
func TestMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		o := PullOffer{Held: policies.Tokens(1 + rng.Int64N(1<<16)), TokenBytes: policies.Bytes(1 + rng.Int64N(1<<20)), Rate: links.Rate(1 + rng.Int64N(1<<36)), Cost: llama}
		if (PullRule{}).Decide(o).Pull {
			continue
		}
		worse := o
		switch rng.IntN(4) {
		case 0:
			worse.Rate = o.Rate/2 + 1
		case 1:
			worse.TokenBytes *= 2
		case 2:
			worse.Cost.D2 /= 2
		case 3:
			worse.Latency += 1000
		}
		if (PullRule{}).Decide(worse).Pull && worse.Rate <= o.Rate {
			t.Fatalf("%+v is pulled, %+v is not", worse, o)
		}
	}
}

func TestAllocations(t *testing.T) {
	o := PullOffer{Held: 8192, TokenBytes: kv, Rate: links.Gigabyte, Cost: llama}
	if n := testing.AllocsPerRun(100, func() { _ = PullRule{}.Decide(o) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
