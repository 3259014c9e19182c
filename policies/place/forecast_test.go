package place_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// llama is roughly Llama-3.1-8B: 10,000 tokens take 0.4 s, and an iteration 14 ms.
var llama = policies.Cost{D0: 0.014, D1: 2e-5, D2: 2.9e-5, D3: 1e-9, D4: 9e-8}

var byTime = place.Forecast{Prices: place.NewPrices(llama)}

// stages is a front end of a stage of four up to 16Ki, and two replicas of the next stage.
func stages(edit func(*policies.Arrival)) policies.Arrival {
	const end = 16384
	a := policies.Arrival{
		Request: policies.Request{ID: "r", Input: 10_000},
		Own:     site{ID: "me", High: end},
		Peers: []site{
			{ID: "p1", High: end}, {ID: "p2", High: end}, {ID: "p3", High: end},
			{ID: "long1", Low: end, High: policies.Unbounded}, {ID: "long2", Low: end, High: policies.Unbounded},
		},
	}
	edit(&a)
	return a
}

func TestForecast(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*policies.Arrival)
		want policies.ReplicaID
	}{
		{"all idle", func(*policies.Arrival) {}, ""},
		{"forwarded before", func(a *policies.Arrival) { a.Hops, a.Own.Draining = 1, true }, ""},
		{"a peer has the prompt", func(a *policies.Arrival) { a.Peers[2].Prefix = 9000 }, "p3"},
		{"a peer has a little of it", func(a *policies.Arrival) { a.Peers[2].Prefix = 512 }, ""},
		{"the own replica has as much", func(a *policies.Arrival) { a.Peers[2].Prefix, a.Own.Prefix = 9000, 9000 }, ""},
		{"a peer has it, and a long queue", func(a *policies.Arrival) { a.Peers[2].Prefix, a.Peers[2].Waiting = 9000, 100_000 }, ""},
		{"a peer has it, and a queue that is worth it", func(a *policies.Arrival) { a.Peers[2].Prefix, a.Peers[2].Waiting = 9000, 10_000 }, "p3"},
		{"a peer has it, and a load above the bound", func(a *policies.Arrival) { a.Peers[2].Prefix, a.Peers[2].Load = 9000, 100_000 }, ""},
		{"a peer has it, and a load at the bound", func(a *policies.Arrival) {
			a.Own.Load, a.Peers[0].Load, a.Peers[1].Load = 40_000, 40_000, 40_000
			a.Peers[2].Prefix, a.Peers[2].Load = 9000, 152_768 // 2 × 68,192 + 16,384
		}, "p3"},
		{"a peer has it, and a load just above the bound", func(a *policies.Arrival) {
			a.Own.Load, a.Peers[0].Load, a.Peers[1].Load = 40_000, 40_000, 40_000
			a.Peers[2].Prefix, a.Peers[2].Load = 9000, 152_769 // the mean is the same
		}, ""},
		{"a peer has it, and two requests as long as this one", func(a *policies.Arrival) {
			a.Request.Input, a.Own.High = 46_000, policies.Unbounded
			a.Peers = []site{{ID: "p1", High: policies.Unbounded, Load: 10_000}, {ID: "p2", High: policies.Unbounded, Load: 92_000, Prefix: 45_000, Running: 2}}
			a.Own.Load = 5000 // the mean is 35,666: twice that and 16,384 is less than what p2 holds
		}, "p2"},
		{"a peer has it, and three requests as long as this one, of four", func(a *policies.Arrival) {
			a.Request.Input, a.Own.High = 46_000, policies.Unbounded
			a.Peers = []site{{ID: "p1", High: policies.Unbounded}, {ID: "p2", High: policies.Unbounded, Load: 138_001, Prefix: 45_000, Running: 3}}
			a.Own.Load = 0 // the bound is 2 × 46,000 + 46,000
		}, ""},
		{"two have it: the shorter queue", func(a *policies.Arrival) {
			a.Peers[0].Prefix, a.Peers[2].Prefix, a.Peers[0].Waiting = 9000, 9000, 1000
		}, "p3"},
		{"two have it: the smaller batch", func(a *policies.Arrival) {
			a.Peers[0].Prefix, a.Peers[2].Prefix, a.Peers[0].Running = 9000, 9000, 9
		}, "p3"},
		{"two have it: the first", func(a *policies.Arrival) { a.Peers[1].Prefix, a.Peers[2].Prefix = 9000, 9000 }, "p2"},
		{"a peer of a longer stage has it", func(a *policies.Arrival) { a.Peers[3].Prefix = 9000 }, "long1"},
		{"a peer of a longer stage has it, and one of the stage", func(a *policies.Arrival) { a.Peers[3].Prefix, a.Peers[1].Prefix = 9000, 9000 }, "p2"},
		{"a peer of a shorter stage has it", func(a *policies.Arrival) {
			a.Request.Input, a.Own.Low, a.Own.High, a.Peers[0].Prefix = 20_000, 16384, policies.Unbounded, 16_000
		}, "p1"},
		{"a peer of a shorter stage has it, and the request cannot move", func(a *policies.Arrival) {
			a.Request.Input, a.Own.Low, a.Own.High, a.Peers[0].Prefix = 20_000, 16384, policies.Unbounded, 16_000
			a.Request.Features = policies.Structured
		}, ""},
		{"a queue here", func(a *policies.Arrival) { a.Own.Waiting = 20_000 }, "p1"},
		{"a queue here, below the margin: 0.2 s", func(a *policies.Arrival) { a.Own.Waiting = 5000 }, ""},
		{"a queue here: the best of two peers", func(a *policies.Arrival) { a.Own.Waiting, a.Peers[0].Waiting = 20_000, 500 }, "p2"},
		{"a queue here: a third peer is not examined", func(a *policies.Arrival) {
			a.Own.Waiting, a.Peers[0].Waiting, a.Peers[1].Waiting = 20_000, 19_000, 19_000
		}, ""},
		{"a large batch here", func(a *policies.Arrival) { a.Own.Running = 200 }, "p1"},
		{"queues in the whole stage: spill", func(a *policies.Arrival) {
			a.Own.Waiting, a.Peers[0].Waiting, a.Peers[1].Waiting, a.Peers[2].Waiting, a.Peers[3].Waiting = 9000, 9000, 9000, 9000, 10
		}, "long2"},
		{"queues everywhere", func(a *policies.Arrival) {
			a.Own.Waiting = 9000
			for i := range a.Peers {
				a.Peers[i].Waiting = 9000
			}
		}, ""},
		{"draining: any of the stage", func(a *policies.Arrival) { a.Own.Draining, a.Peers[0].Waiting, a.Peers[1].Load = true, 1, 1 }, "p3"},
		{"draining, and the stage drains", func(a *policies.Arrival) {
			a.Own.Draining, a.Peers[0].Draining, a.Peers[1].Draining, a.Peers[2].Draining = true, true, true, true
			a.Peers[3].Load = 5
		}, "long2"},
		{"draining, and all are above the bound", func(a *policies.Arrival) {
			a.Own.Draining, a.Peers = true, a.Peers[:1]
			a.Peers[0].Load = 1 << 40
		}, "p1"},
		{"draining, alone", func(a *policies.Arrival) { a.Own.Draining, a.Peers = true, nil }, ""},
		{"too long", func(a *policies.Arrival) { a.Request.Input, a.Peers[3].Waiting = 20_000, 100 }, "long2"},
		{"too long by estimate only", func(a *policies.Arrival) { a.Request.Input, a.Request.Estimated = 20_000, true }, ""},
		{"too long, and no longer stage", func(a *policies.Arrival) { a.Request.Input, a.Peers = 20_000, a.Peers[:3] }, ""},
		{"too short for the own stage", func(a *policies.Arrival) { a.Own.Low = 12_000 }, "p1"},
		{"the own replica in the list", func(a *policies.Arrival) { a.Peers[0].ID, a.Peers[0].Prefix = "me", 9000 }, ""},
	} {
		if got := byTime.Place(stages(c.edit)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	free := place.Forecast{Prices: place.Prices{Iteration: 1}}
	for waiting, want := range map[policies.Tokens]policies.ReplicaID{place.DefaultQueue: "", place.DefaultQueue + 1: "p1"} {
		if got := free.Place(stages(func(a *policies.Arrival) { a.Own.Waiting = waiting })); got != want {
			t.Errorf("a queue of %d tokens that costs nothing: %q, want %q", waiting, got, want)
		}
	}
	for margin, want := range map[policies.Micros]policies.ReplicaID{44_999: "p3", 45_000: ""} { // of 9,000 µs, and four times that by Prefill
		unpriced := place.Forecast{Margin: margin}
		if got := unpriced.Place(stages(func(a *policies.Arrival) { a.Peers[2].Prefix = 9000 })); got != want {
			t.Errorf("without prices, and a margin of %d µs: %q, want %q", margin, got, want)
		}
	}
	copies := byTime
	copies.Prices = copies.Prices.WithCopies(5.2e-6)
	for _, c := range []struct {
		name string
		edit func(*policies.Arrival)
		want policies.ReplicaID
	}{
		{"all idle: the holder", func(a *policies.Arrival) { a.Request.Input, a.Peers[2].Prefix = 16_000, 15_500 }, "p3"},
		{"all idle: a copy costs less than the margin", func(a *policies.Arrival) { a.Peers[2].Prefix = 5000 }, ""},
		{"a holder with a queue", func(a *policies.Arrival) { a.Peers[2].Prefix, a.Peers[2].Waiting = 9000, 20_000 }, ""},
		{"a holder with a batch", func(a *policies.Arrival) { a.Peers[2].Prefix, a.Peers[2].Running, a.Peers[2].Load = 9000, 20, 100_000 }, ""},
		{"the own replica holds it, with a batch", func(a *policies.Arrival) { a.Own.Prefix, a.Own.Running, a.Own.Load = 9000, 100, 32_000 }, "p1"},
	} {
		if got := copies.Place(stages(c.edit)); got != c.want {
			t.Errorf("with copies, %s: %q, want %q", c.name, got, c.want)
		}
	}
	long := func(edit func(*policies.Arrival)) policies.Arrival { // a prompt of 2.8 s, in the longer stage
		return stages(func(a *policies.Arrival) {
			a.Request.Input, a.Own.Low, a.Own.High = 40_000, 16384, policies.Unbounded
			edit(a)
		})
	}
	unmoved, slower := copies, copies
	unmoved.ShorterMargin, slower.ShorterMargin = place.NoShorter, 5*policies.Second
	busy := func(a *policies.Arrival) { // 4 s of prompts at each replica of the stage
		a.Own.Waiting, a.Peers[3].Waiting, a.Peers[4].Waiting = 60_000, 60_000, 60_000
	}
	for _, c := range []struct {
		name   string
		policy place.Forecast
		edit   func(*policies.Arrival)
		want   policies.ReplicaID
	}{
		{"an idle stage", copies, func(*policies.Arrival) {}, ""},
		{"a busy stage: an idle replica of the shorter one", copies, busy, "p1"},
		{"a busy stage: the best of the shorter one", copies, func(a *policies.Arrival) { busy(a); a.Peers[0].Waiting, a.Peers[1].Waiting = 500, 100 }, "p3"},
		{"one of the stage is idle", copies, func(a *policies.Arrival) { busy(a); a.Peers[4].Waiting = 0 }, "long2"},
		{"less than the margin: 0.9 s", copies, func(a *policies.Arrival) {
			a.Own.Waiting, a.Peers[3].Waiting, a.Peers[4].Waiting = 18_000, 18_000, 18_000
		}, ""},
		{"more than the margin: 1.2 s", copies, func(a *policies.Arrival) {
			a.Own.Waiting, a.Peers[3].Waiting, a.Peers[4].Waiting = 23_000, 23_000, 23_000
		}, "p1"},
		{"a larger margin", slower, busy, ""},
		{"all are busy", copies, func(a *policies.Arrival) {
			busy(a)
			for i := range a.Peers {
				a.Peers[i].Waiting = 60_000
			}
		}, ""},
		{"a large batch in the shorter stage loses more", copies, func(a *policies.Arrival) {
			busy(a)
			for i := range a.Peers {
				a.Peers[i].Running = 200
			}
		}, ""},
		{"the shorter stage drains", copies, func(a *policies.Arrival) {
			busy(a)
			a.Peers[0].Draining, a.Peers[1].Draining, a.Peers[2].Draining = true, true, true
		}, ""},
		{"it cannot move", copies, func(a *policies.Arrival) { busy(a); a.Request.Features = policies.Structured }, ""},
		{"no KV is copied", byTime, busy, ""},
		{"never", unmoved, busy, ""},
	} {
		if got := c.policy.Place(long(c.edit)); got != c.want {
			t.Errorf("a long prompt, %s: %q, want %q", c.name, got, c.want)
		}
	}
	within := byTime
	within.ByLength = true
	if got := within.Place(stages(func(a *policies.Arrival) { a.Peers[3].Prefix = 9000 })); got != "" {
		t.Errorf("by length: %q", got)
	}
}

func TestNewPrices(t *testing.T) {
	if got, want := place.NewPrices(llama), (place.Prices{Iteration: 14_000_000_000, Sequence: 20_000_000, Prompt: 29_000_000, Prompt2: 1_000_000_000, Held: 90_000_000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := place.NewPrices(policies.Cost{D0: 1e300, D1: math.NaN(), D2: -1}); got != (place.Prices{Iteration: 1 << 62}) {
		t.Errorf("%+v", got)
	}
}

// sixteen is an arrival with sixteen candidates.
func sixteen() policies.Arrival {
	rng := rand.New(rand.NewPCG(3, 3))
	a := randomArrival(rng, false)
	for len(a.Peers) < 15 {
		a.Peers = append(a.Peers, site{ID: policies.ReplicaID(rune('q' + len(a.Peers))), High: policies.Unbounded, Load: policies.Tokens(rng.Int64N(100_000))})
	}
	return a
}

func TestForecastAllocations(t *testing.T) {
	a := sixteen()
	if n := testing.AllocsPerRun(100, func() { byTime.Place(a) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkForecast places one request among sixteen candidates. Target: 20 µs.
func BenchmarkForecast(b *testing.B) {
	a := sixteen()
	b.ReportAllocs()
	for b.Loop() {
		byTime.Place(a)
	}
}
