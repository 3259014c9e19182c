package place_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

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
