package place_test

import (
	"math"
	"math/big"
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

// randomArrival draws an arrival; wild ones have numbers of any size. Lengths and queues are often at a bound, some
// peers are alike, and stages overlap as they do while a plan changes.
func randomArrival(rng *rand.Rand, wild bool) policies.Arrival {
	tokens := func(most int64) policies.Tokens {
		if wild {
			return policies.Tokens(rng.Uint64() >> rng.IntN(64))
		}
		return policies.Tokens(rng.Int64N(1 + rng.Int64N(most)))
	}
	cuts := []policies.Tokens{0, 4096, 16384, policies.Unbounded}
	queues := []policies.Tokens{0, 1500, 3000, 4096, 8192, 16384}
	one := func(i int) site {
		k := rng.IntN(3)
		high := k + 1
		if rng.IntN(8) == 0 {
			high += rng.IntN(len(cuts) - high)
		}
		waiting := tokens(30_000)
		if rng.IntN(4) == 0 {
			waiting = queues[rng.IntN(len(queues))]
		}
		return site{
			ID: policies.ReplicaID(rune('a' + i)), Low: cuts[k], High: cuts[high], Waiting: waiting, Load: tokens(200_000),
			Prefix: tokens(20_000) * policies.Tokens(rng.IntN(2)), Draining: rng.IntN(6) == 0, Running: int(tokens(40)),
		}
	}
	a := policies.Arrival{Request: policies.Request{Input: tokens(30_000), MaxOutput: tokens(500), Estimated: rng.IntN(4) == 0}, Own: one(0)}
	if rng.IntN(4) == 0 {
		a.Request.Features = policies.Structured
	}
	if rng.IntN(4) == 0 {
		a.Request.Input = cuts[1+rng.IntN(2)]
	}
	for i := range rng.IntN(16) {
		if rng.IntN(20) == 0 {
			a.Peers = append(a.Peers, one(0)) // the own replica is in the list
			continue
		}
		c := one(i + 1)
		if i > 0 && rng.IntN(6) == 0 {
			id := c.ID
			c = a.Peers[i-1]
			c.ID = id
		}
		a.Peers = append(a.Peers, c)
	}
	return a
}

// TestForecastAgainstOracle compares placements with a plain computation over lists, in exact arithmetic.
func TestForecastAgainstOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 4))
	counts := map[bool]int{}
	for range 20_000 {
		p := byTime
		if rng.IntN(2) == 0 {
			p = place.Forecast{Prices: byTime.Prices, Answer: 50, Chunk: 2048, Margin: 5000, ShorterMargin: 20_000, Prefill: 100, Others: 100, Evicted: 30, Bound: 125, Choices: 4, Queue: 3000, ByLength: rng.IntN(2) == 0}
		}
		if rng.IntN(2) == 0 {
			p.Prices.Copied = 1 << rng.IntN(30)
		}
		a := randomArrival(rng, rng.IntN(10) == 0)
		got, want := p.Place(a), dumbPlace(p, a)
		if got != want {
			t.Fatalf("%+v\n%+v\nplaced at %q, want %q", p, a, got, want)
		}
		counts[got != ""]++
	}
	if counts[true] < 2000 || counts[false] < 2000 {
		t.Errorf("forwarded or not: %v", counts)
	}
}

// dumbPlace is Forecast by its description.
func dumbPlace(p place.Forecast, a policies.Arrival) policies.ReplicaID {
	if p.Answer == 0 {
		p.Answer, p.Chunk, p.Margin, p.ShorterMargin, p.Prefill, p.Others, p.Evicted, p.Bound, p.Choices, p.Queue = 128, 8192, 250_000, 1_000_000, 400, 10, 100, 200, 2, 8192
	}
	length := a.Request.Length()
	var stage, longer, elsewhere []site
	serves := !a.Own.Draining && (a.Request.Estimated || a.Own.Low <= length && length < a.Own.High)
	for _, c := range a.Peers {
		switch {
		case c.Draining || c.ID == a.Own.ID:
		case c.Low <= length && length < c.High:
			stage = append(stage, c)
		default:
			elsewhere = append(elsewhere, c)
			if c.Low > length {
				longer = append(longer, c)
			}
		}
	}
	cached, shortest := policies.Tokens(0), policies.Unbounded
	all := stage
	if serves {
		all = append([]site{a.Own}, stage...)
	}
	for _, c := range all {
		cached, shortest = max(cached, c.Prefix), min(shortest, c.Waiting)
	}
	suitable := map[policies.ReplicaID]bool{}
	for _, c := range stage {
		suitable[c.ID] = true
	}
	for _, c := range elsewhere {
		if !p.ByLength && c.Prefix > cached && (length < c.High || a.Request.Features == 0) {
			suitable[c.ID] = true
		}
	}
	within := func(c site) bool {
		sum, n := big.NewInt(0), int64(0)
		for i, x := range append([]site{a.Own}, a.Peers...) {
			if x.Low == c.Low && x.High == c.High && (i == 0 || x.ID != a.Own.ID) {
				sum.Add(sum, big.NewInt(bounded(x.Load)))
				n++
			}
		}
		sum.Div(sum, big.NewInt(n))
		sum.Mul(sum, big.NewInt(int64(p.Bound)))
		sum.Div(sum, big.NewInt(100))
		return big.NewInt(bounded(c.Load)).Cmp(sum.Add(sum, big.NewInt(max(16384, bounded(a.Request.Input))))) <= 0
	}
	choose := func(ok func(site) bool) *site {
		var best *site
		var least int64
		// Where the own queue is too long, and one that is examined is not, those with long queues are out.
		relieved := false
		for i, n := 0, 0; i < len(a.Peers); i++ {
			c := &a.Peers[i]
			if c.Draining || c.ID == a.Own.ID || !suitable[c.ID] || !ok(*c) {
				continue
			}
			if serves && c.Prefix <= a.Own.Prefix {
				n++
			}
			examined := !serves || c.Prefix > a.Own.Prefix || n <= p.Choices
			relieved = relieved || examined && serves && a.Own.Waiting > p.Queue && c.Waiting <= a.Own.Waiting/2
		}
		if serves && ok(a.Own) && !relieved {
			best, least = &a.Own, dumbPrice(p, a, a.Own)
		}
		examined := 0
		for i := range a.Peers {
			c := &a.Peers[i]
			if c.Draining || c.ID == a.Own.ID || !suitable[c.ID] || !ok(*c) {
				continue
			}
			if serves && c.Prefix <= a.Own.Prefix {
				if examined++; examined > p.Choices {
					continue
				}
			}
			if relieved && c.Waiting > a.Own.Waiting/2 {
				continue
			}
			price := saturated(big.NewInt(0).Add(big.NewInt(dumbPrice(p, a, *c)), big.NewInt(int64(p.Margin))))
			if best == nil || price < least || price == least && best != &a.Own && c.Load < best.Load {
				best, least = c, price
			}
		}
		return best
	}
	best := choose(within)
	if best == nil {
		best = choose(func(site) bool { return true })
	}
	if best == nil && !a.Own.Draining && length < a.Own.Low {
		return ""
	}
	if best == nil || shortest > p.Queue && shortest < policies.Unbounded {
		var spill *site
		for i := range longer {
			c := &longer[i]
			if best != nil && c.Waiting > shortest/2 {
				continue
			}
			if x, y := dumbPrice(p, a, *c), int64(0); spill == nil {
				spill = c
			} else if y = dumbPrice(p, a, *spill); x < y || x == y && c.Load < spill.Load {
				spill = c
			}
		}
		if spill != nil {
			best = spill
		}
	}
	if best != nil && a.Request.Features == 0 && p.Prices.Copied > 0 && !p.ByLength {
		least := dumbPrice(p, a, *best)
		for i := range a.Peers {
			c := &a.Peers[i]
			if c.High > length || c.Draining || c.ID == a.Own.ID {
				continue
			}
			price := saturated(big.NewInt(0).Add(big.NewInt(dumbPrice(p, a, *c)), big.NewInt(int64(p.ShorterMargin))))
			if price < least {
				best, least = c, price
			}
		}
	}
	if best == nil || best.ID == a.Own.ID {
		return ""
	}
	return best.ID
}

func bounded(n policies.Tokens) int64 { return int64(min(max(n, 0), 1<<30)) }

func saturated(x *big.Int) int64 {
	if !x.IsInt64() {
		return math.MaxInt64
	}
	return x.Int64()
}

// dumbPrice is the price of a request at a replica, with each product rounded down to microseconds.
func dumbPrice(p place.Forecast, a policies.Arrival, c site) int64 {
	r := a.Request
	n := func(x int64) *big.Int { return big.NewInt(x) }
	cap64 := func(x *big.Int) *big.Int { return n(saturated(x)) }
	sum := func(xs ...*big.Int) *big.Int {
		total := n(0)
		for _, x := range xs {
			total = cap64(total.Add(total, x))
		}
		return total
	}
	mul := func(a *big.Int, b, per int64) *big.Int {
		x := big.NewInt(0).Mul(a, n(b))
		return cap64(x.Div(x, n(per)))
	}
	prices := p.Prices
	input, waiting, held := bounded(r.Input), bounded(c.Waiting), bounded(c.Load)
	cached := min(bounded(c.Prefix), max(input-1, 0))
	running := min(max(int64(c.Running), 0), 1<<20)
	answer := bounded(p.Answer)
	if r.MaxOutput > 0 {
		answer = min(answer, bounded(r.MaxOutput))
	}
	copying, evicted := n(0), n(0)
	for _, holder := range append([]site{a.Own}, a.Peers...) {
		longer := min(bounded(holder.Prefix), max(input-1, 0))
		if longer <= min(bounded(c.Prefix), max(input-1, 0)) || longer <= cached || prices.Copied == 0 {
			continue
		}
		own := min(bounded(c.Prefix), max(input-1, 0))
		takes := sum(mul(n(longer-own), prices.Copied, 1e6), n(10_000))
		saves := sum(mul(n(longer-own), prices.Prompt, 1e6), mul(n(longer*longer-own*own), prices.Prompt2, 1e12))
		if least := n(0).Div(saves, n(100)); takes.Cmp(least.Mul(least, n(75))) < 0 {
			cached, copying, evicted = longer, takes, saves
		}
	}
	iteration := func(running, held int64) *big.Int {
		return sum(mul(n(1), prices.Iteration, 1e6), mul(n(running), prices.Sequence, 1e6), mul(n(held), prices.Held, 1e9))
	}
	prefill := sum(mul(n(input-cached), prices.Prompt, 1e6), mul(n(input*input-cached*cached), prices.Prompt2, 1e12))
	before := sum(mul(n(waiting), prices.Prompt, 1e6), mul(n(waiting*min(waiting, input)), prices.Prompt2, 1e12))
	chunks := (waiting + input - cached + int64(p.Chunk) - 1) / int64(p.Chunk)
	slower := mul(sum(mul(n(1), prices.Sequence, 1e6), mul(n(input+answer/2), prices.Held, 1e9)), answer, 1)
	lost := mul(sum(prefill, slower), running, 1)
	total := sum(before, copying, prefill, mul(evicted, int64(p.Evicted), 100), mul(iteration(running, held), chunks, 1), mul(iteration(running+1, held+input), answer, 1),
		mul(lost, int64(p.Others), 100), mul(prefill, int64(p.Prefill), 100))
	return total.Int64()
}

// TestForecastNeverBreaksRules draws wild arrivals: no replica that drains or serves shorter requests
// only gets one that cannot move, and none is forwarded twice.
func TestForecastNeverBreaksRules(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	for range 20_000 {
		a := randomArrival(rng, rng.IntN(2) == 0)
		id := byTime.Place(a)
		if id == "" {
			continue
		}
		ok := false
		for _, c := range a.Peers {
			ok = ok || c.ID == id && !c.Draining && (a.Request.Features == 0 || a.Request.Input < c.High)
		}
		if !ok || id == a.Own.ID {
			t.Fatalf("%+v: placed at %q", a, id)
		}
		if a.Hops = 1; byTime.Place(a) != "" {
			t.Fatal("forwarded again")
		}
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
