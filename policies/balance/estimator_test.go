package balance

import (
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// TestEstimatorIsPure checks that the same events at the same times give the same
// estimates, and that every estimate keeps its invariants for any reports.
func TestEstimatorIsPure(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := Engine{
			KV: policies.Tokens(rng.Int64N(1 << 20)), Batch: rng.IntN(512), Context: policies.Tokens(rng.Int64N(1 << 17)),
			Rate: rng.Float64() * 1e5, Late: policies.Micros(rng.Int64N(int64(10 * policies.Second))),
		}
		var a, b Estimator
		now := policies.Micros(0)
		for range 500 {
			now += policies.Micros(rng.Int64N(int64(3 * policies.Second)))
			var ev Event = Tick{}
			switch rng.IntN(3) {
			case 0:
				ev = Claim{
					Running: rng.IntN(1000) - 10, Waiting: rng.IntN(100), Streams: rng.IntN(1000),
					Held: policies.Tokens(rng.Int64N(1<<42) >> rng.IntN(40)), Promised: policies.Tokens(rng.Int64N(1 << 40)), Bounded: rng.IntN(20) == 0,
				}
			case 1:
				ev = ProxyReport{Requests: rng.IntN(2000), Answers: rng.Uint64N(3), Share: rng.NormFloat64() * 3}
			}
			f := a.Step(now, r, ev)
			if g := b.Step(now, r, ev); f != g {
				t.Fatalf("seed %d: %+v and %+v", seed, f, g)
			}
			_, tick := ev.(Tick)
			switch {
			case f.Drift && (!tick || f.Source != Unknown):
				t.Fatalf("seed %d: drifts on %T: %+v", seed, ev, f)
			case f.Distrusted != "" && f.Source != Unknown:
				t.Fatalf("seed %d: uses a migrator that it distrusts: %+v", seed, f)
			case f.Source == Proxies && f.Work > max(r.KV, 1)*2000:
				t.Fatalf("seed %d: %+v", seed, f)
			}
		}
	}
}

// TestNewReplica checks what is known of a replica without its reports: how fast its cache
// fills only if both the engine's prefill and its transfers are known.
func TestNewReplica(t *testing.T) {
	r := policies.Replica{Capacity: policies.Capacity{KV: 100, Batch: 8, TransferRate: 2}}
	cost := policies.Cost{D0: 1, D2: 0.25}
	want := Engine{KV: 100, Batch: 8, Context: 50, Rate: 104, Late: 7}
	if got := NewEngine(r, cost, 50, 7); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	want.Rate = 0
	if got := NewEngine(r, policies.Cost{D0: 1}, 50, 7); got != want {
		t.Errorf("without a prefill time: %+v", got)
	}
	r.Capacity.TransferRate = 0
	if got := NewEngine(r, cost, 50, 7); got != want {
		t.Errorf("without a transfer rate: %+v", got)
	}
}

// TestTwoBadClaims checks that two bad claims among ten never make the migrator
// distrusted.
func TestTwoBadClaims(t *testing.T) {
	r := Engine{KV: 100_000, Batch: 64, Context: 8192, Late: 5 * policies.Second}
	for first := range 10 {
		for second := first + 1; second < 10; second++ {
			var m Estimator
			for i := range 10 {
				c := Claim{Running: 3, Held: 9000, Bounded: i == first || i == second}
				if f := m.Step(policies.Micros(i)*policies.Second, r, c); f.Source != Migrator {
					t.Fatalf("bad claims %d and %d: %+v after %d", first, second, f, i)
				}
			}
		}
	}
}

func BenchmarkStep(b *testing.B) {
	r := Engine{KV: 100_000, Batch: 64, Context: 8192, Rate: 1e4, Late: 5 * policies.Second}
	var m Estimator
	now := policies.Micros(0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now += policies.Millisecond
		if i%4 == 0 {
			m.Step(now, r, ProxyReport{Requests: 3})
		}
		m.Step(now, r, Claim{Running: 3, Streams: 3, Held: 9000})
	}
}
