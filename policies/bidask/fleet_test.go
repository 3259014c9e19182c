package bidask_test

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// simulation is a stage that sells requests to the next one, in virtual time: there are
// as many sellers as receivers, each seller gets perSecond requests, and each request
// runs five to fifteen seconds on its receiver. Lengths are log-normal around 2,000
// tokens; a transfer runs at wireRate.
type simulation struct {
	rule      rule
	receivers int
	latency   policies.Micros // one way
	burst     int             // requests that each seller offers at once; 0: a steady flow
	slots     int             // each way; 0 means the default
	until     policies.Micros // no arrivals after that, except for a second to finish; 0 means long enough to settle

	rng     *rand.Rand
	now     policies.Micros
	later   agenda
	air     []bidask.Message // in order of sending; all have the same latency
	sentAt  []policies.Micros
	head    int
	sellers []*trader
	buyers  []*trader
	names   []policies.ReplicaID // of the buyers
	stale   []policies.Tokens    // the buyers' loads as of the last whole second
	out     []bidask.Action
	turn    []int // round robin
	offered map[bidask.Deal]policies.Micros
	number  []uint64

	messages, moves, returns int
	near                     int     // migrations within a host, if the rule has hosts
	wait                     float64 // seconds from offer to transfer, summed over all migrations
	longest                  policies.Micros
	cv                       []float64
}

const (
	perSecond                 = 5
	wireRate                  = 110_000 // tokens per second, one transfer
	span      policies.Micros = 14 * policies.Second
	settled   policies.Micros = 12 * policies.Second
	burstEnd  policies.Micros = 8 * policies.Second
)

// rule is the way in which a receiver is chosen: by the market, or by comparing loads.
type rule struct {
	name   string
	sample int // of the market; 0: no market
	paper  bool
	nodes  int // seller and buyer number n are on host n mod nodes, within which transfers cost a tenth; 0: hosts are unknown
	pick   func(c *simulation, seller int) int
}

var rules = []rule{
	{name: "random", pick: func(c *simulation, _ int) int { return c.rng.IntN(c.receivers) }},
	{name: "round-robin", pick: func(c *simulation, s int) int { c.turn[s]++; return c.turn[s] % c.receivers }},
	{name: "two-choices-1s-stale", pick: func(c *simulation, _ int) int {
		a, b := c.rng.IntN(c.receivers), c.rng.IntN(c.receivers)
		if c.stale[b] < c.stale[a] {
			return b
		}
		return a
	}},
	{name: "join-shortest-1s-stale", pick: func(c *simulation, _ int) int {
		best, ties := 0, 0
		for i, l := range c.stale {
			switch {
			case l < c.stale[best]:
				best, ties = i, 1
			case l == c.stale[best]:
				if ties++; c.rng.IntN(ties) == 0 {
					best = i
				}
			}
		}
		return best
	}},
	{name: "everyone-paper", sample: bidask.AskAll, paper: true},
	{name: "everyone-least", sample: bidask.AskAll},
	{name: "eight-paper", sample: 8, paper: true},
	{name: "eight-least", sample: 8},
	{name: "eight-near", sample: 8, nodes: 8},
}

func ruleNamed(name string) rule {
	for _, r := range rules {
		if r.name == name {
			return r
		}
	}
	panic("no rule " + name)
}

// trader is one replica of the simulation.
type trader struct {
	machine *bidask.Machine
	held    policies.Tokens
	tick    policies.Micros // when its next tick is due to fire; 0: none
}

// happening is the kind of a scheduled event.
type happening uint8

const (
	arrival happening = iota // seller a has a request
	arrived                  // the transfer of deal to buyer b has ended
	leaves                   // n tokens leave buyer b
	ticks                    // the timer of trader a fires; sellers and buyers are counted together
	looks                    // all sellers read the loads
	samples                  // the balance is measured
)

type occurrence struct {
	at   policies.Micros
	seq  int
	what happening
	a, b int
	n    policies.Tokens
	deal bidask.Deal
}

// agenda is a heap of occurrences by time, then by order of scheduling.
type agenda struct {
	list []occurrence
	seq  int
}

func (h *agenda) Len() int      { return len(h.list) }
func (h *agenda) Swap(i, j int) { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *agenda) Push(x any)    { h.list = append(h.list, x.(occurrence)) }

func (h *agenda) Less(i, j int) bool {
	a, b := &h.list[i], &h.list[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h *agenda) Pop() any {
	last := h.list[len(h.list)-1]
	h.list = h.list[:len(h.list)-1]
	return last
}

func (h *agenda) add(o occurrence) {
	h.seq++
	o.seq = h.seq
	heap.Push(h, o)
}

// simulate runs the simulation to its end.
func (c *simulation) simulate() {
	n := c.receivers
	c.rng = rand.New(rand.NewPCG(11, uint64(n)))
	c.offered = map[bidask.Deal]policies.Micros{}
	c.stale, c.turn, c.number = make([]policies.Tokens, n), make([]int, n), make([]uint64, n)
	for i := range n {
		c.names = append(c.names, policies.ReplicaID(fmt.Sprint("r", i)))
		c.turn[i] = c.rng.IntN(n)
		c.sellers = append(c.sellers, c.trader(fmt.Sprint("s", i)))
		c.buyers = append(c.buyers, c.trader(fmt.Sprint("r", i)))
	}
	for i := range n {
		c.step(n+i, bidask.Event{Kind: bidask.OccupancyMeasured, Occupancy: policies.Occupancy{Capacity: 1 << 30, Throughput: 4 * wireRate}})
		for range c.burst {
			c.later.add(occurrence{what: arrival, a: i})
		}
		if c.burst == 0 {
			c.later.add(occurrence{at: c.gap(), what: arrival, a: i})
		}
	}
	end := span
	if c.burst > 0 {
		end = burstEnd
	}
	if c.until > 0 {
		end = c.until + policies.Second
	}
	c.later.add(occurrence{at: policies.Second, what: looks})
	c.later.add(occurrence{at: end, what: samples})
	if c.burst == 0 {
		c.later.add(occurrence{at: settled, what: samples})
	}
	for {
		// All messages have the same latency; no later event is processed before them.
		if c.head < len(c.air) && (len(c.later.list) == 0 || c.sentAt[c.head]+c.latency <= c.later.list[0].at) {
			msg := c.air[c.head]
			c.now = c.sentAt[c.head] + c.latency
			c.head++
			if c.head > 1<<16 && 2*c.head > len(c.air) { // forget what was delivered
				c.air, c.sentAt = append(c.air[:0], c.air[c.head:]...), append(c.sentAt[:0], c.sentAt[c.head:]...)
				c.head = 0
			}
			c.step(c.index(msg.To), bidask.Event{Kind: bidask.MessageReceived, Message: msg})
			continue
		}
		o := heap.Pop(&c.later).(occurrence)
		c.now = o.at
		if c.now > end {
			return
		}
		c.happen(o)
	}
}

func (c *simulation) trader(name string) *trader {
	cfg := bidask.Rules{Self: policies.ReplicaID(name), Sample: c.rule.sample, MaxWins: 1 << 12, MaxConcurrentSends: c.slots, MaxConcurrentReceives: c.slots}
	if c.rule.paper {
		cfg.Selector = bidask.Paper{}
	}
	m := testkit.Must(bidask.NewMachine(cfg))
	return &trader{machine: m}
}

// index returns the index of a replica in the list of the sellers followed by the
// buyers.
func (c *simulation) index(id policies.ReplicaID) int {
	n := 0
	for _, digit := range id[1:] {
		n = 10*n + int(digit-'0')
	}
	if id[0] == 'r' {
		n += c.receivers
	}
	return n
}

func (c *simulation) at(i int) *trader {
	if i < c.receivers {
		return c.sellers[i]
	}
	return c.buyers[i-c.receivers]
}

func (c *simulation) gap() policies.Micros {
	return c.now + policies.Micros(c.rng.ExpFloat64()/perSecond*float64(policies.Second))
}

func (c *simulation) happen(o occurrence) {
	switch o.what {
	case arrival:
		length := policies.Tokens(2000 * math.Exp(0.8*c.rng.NormFloat64()))
		if next := c.gap(); c.burst == 0 && (c.until == 0 || next < c.until) {
			c.later.add(occurrence{at: next, what: arrival, a: o.a})
		}
		if c.rule.sample == 0 {
			c.later.add(occurrence{at: c.now + c.latency + travel(length), what: arrived, a: -1, b: c.rule.pick(c, o.a), n: length})
			return
		}
		deal := bidask.Deal{Seller: policies.ReplicaID(fmt.Sprint("s", o.a)), Number: c.number[o.a]}
		c.number[o.a]++
		c.offered[deal] = c.now
		c.step(o.a, bidask.Event{Kind: bidask.Offered, Migration: policies.Migration{Request: deal.String(), Length: length, Cause: policies.Growth}, Candidates: c.names, Costs: c.costs(o.a), Seed: c.rng.Uint64()})
	case arrived:
		c.moves++
		if c.rule.nodes > 0 && o.a%c.rule.nodes == o.b%c.rule.nodes {
			c.near++
		}
		b := c.buyers[o.b]
		b.held += o.n
		if c.burst == 0 {
			c.later.add(occurrence{at: c.now + 5*policies.Second + policies.Micros(c.rng.Int64N(int64(10*policies.Second))), what: leaves, b: o.b, n: o.n})
		}
		if o.a >= 0 {
			c.step(o.a, bidask.Event{Kind: bidask.TransferDone, Deal: o.deal})
			c.step(c.receivers+o.b, bidask.Event{Kind: bidask.TransferDone, Deal: o.deal})
		}
	case leaves:
		b := c.buyers[o.b]
		b.held -= o.n
		if c.rule.sample != 0 {
			c.step(c.receivers+o.b, bidask.Event{Kind: bidask.OccupancyMeasured, Occupancy: policies.Occupancy{Capacity: 1 << 30, Held: b.held, Throughput: 4 * wireRate}})
		}
	case ticks:
		t := c.at(o.a)
		t.tick = 0
		c.step(o.a, bidask.Event{Kind: bidask.DeadlineReached})
		c.schedule(o.a)
	case looks:
		for i, b := range c.buyers {
			c.stale[i] = b.held
		}
		c.later.add(occurrence{at: c.now + policies.Second, what: looks})
	case samples:
		c.cv = append(c.cv, c.balance())
		if c.burst == 0 {
			c.later.add(occurrence{at: c.now + 100*policies.Millisecond, what: samples})
		}
	}
}

// costs returns the costs of transfers from a seller to the buyers.
func (c *simulation) costs(seller int) (out []policies.Micros) {
	for i := 0; c.rule.nodes > 0 && i < c.receivers; i++ {
		cost := policies.Micros(1000)
		if i%c.rule.nodes == seller%c.rule.nodes {
			cost = 100
		}
		out = append(out, cost)
	}
	return out
}

func travel(length policies.Tokens) policies.Micros {
	return policies.Micros(length * policies.Tokens(policies.Second) / wireRate)
}

// step passes an event to one machine and carries out its actions.
func (c *simulation) step(i int, ev bidask.Event) {
	ev.Now = c.now
	c.out = c.at(i).machine.Step(ev, c.out[:0])
	quiet := true // no deadline has changed
	for k := 0; k < len(c.out); k++ {
		a := c.out[k]
		switch a.Kind {
		case bidask.Send:
			c.messages++
			c.air, c.sentAt = append(c.air, a.Message), append(c.sentAt, c.now)
			quiet = quiet && a.Message.Kind == bidask.Bid
			continue
		case bidask.Reserve: // granted at once
			c.out = c.at(i).machine.Step(bidask.Event{Kind: bidask.Reserved, Now: c.now, Deal: a.Deal}, c.out)
		case bidask.Import:
			started := c.now - c.offered[a.Deal]
			delete(c.offered, a.Deal)
			c.wait += float64(started) / float64(policies.Second)
			c.longest = max(c.longest, started)
			c.later.add(occurrence{at: c.now + travel(a.Migration.Length), what: arrived, a: c.index(a.Deal.Seller), b: i - c.receivers, n: a.Migration.Length, deal: a.Deal})
		case bidask.Return:
			c.returns++
		}
		quiet = false
	}
	if !quiet || ev.Kind == bidask.TransferDone {
		c.schedule(i)
	}
}

// schedule schedules the machine's next DeadlineReached.
func (c *simulation) schedule(i int) {
	t := c.at(i)
	next, ok := t.machine.Next()
	if ok && (t.tick == 0 || next < t.tick) {
		t.tick = next
		c.later.add(occurrence{at: next, what: ticks, a: i})
	}
}

// balance returns the coefficient of variation of the buyers' loads.
func (c *simulation) balance() float64 {
	var sum, squares float64
	for _, b := range c.buyers {
		sum += float64(b.held)
		squares += float64(b.held) * float64(b.held)
	}
	n := float64(len(c.buyers))
	mean := sum / n
	return math.Sqrt(max(0, squares/n-mean*mean)) / mean
}

func mean(xs []float64) (sum float64) {
	for _, x := range xs {
		sum += x / float64(len(xs))
	}
	return sum
}

// TestMessages bounds the messages per migration: 2d+3 in a steady flow, in a small
// stage as well as in a large one. A burst adds the messages for skipped buyers: up to
// four Pulls with their Busy, a Starving and a Ready.
func TestMessages(t *testing.T) {
	large := testkit.Size(150, 1000)
	for _, x := range []struct {
		simulation
		limit float64
	}{
		{simulation{receivers: 16}, 19.01},
		{simulation{receivers: large, until: policies.Second}, 19.01},
		{simulation{receivers: 128, until: 3 * policies.Second, latency: 20 * policies.Millisecond}, 19.3},
		{simulation{receivers: large, until: policies.Second, latency: 20 * policies.Millisecond}, 19.3},
		{simulation{receivers: 16, burst: 20}, 32},
		{simulation{receivers: large, burst: 5}, 27},
	} {
		for _, name := range []string{"eight-paper", "eight-least"} {
			c := x.simulation
			c.rule = ruleNamed(name)
			c.latency = max(c.latency, 300)
			c.simulate()
			at := fmt.Sprintf("%s, %d receivers, latency %s ms, burst %d", name, c.receivers, millis(c.latency), c.burst)
			got := float64(c.messages) / float64(c.moves)
			t.Logf("%s: %.2f messages a move", at, got)
			if got > x.limit || got < 18 {
				t.Errorf("%s: %.2f messages a move, want 18 to %v", at, got, x.limit)
			}
			if c.returns > 0 || c.moves < c.receivers*4 || c.burst > 0 && c.moves != c.receivers*c.burst {
				t.Errorf("%s: %d moves, %d returns", at, c.moves, c.returns)
			}
		}
	}
}

// TestBalance checks that loads differ at most half as much with the market as without,
// even if bids are old when they arrive.
func TestBalance(t *testing.T) {
	receivers := testkit.Size(32, 64)
	for _, latency := range []policies.Micros{300, 20 * policies.Millisecond} {
		blind := simulation{rule: ruleNamed("random"), receivers: receivers, latency: latency}
		blind.simulate()
		for _, name := range []string{"eight-paper", "eight-least"} {
			c := simulation{rule: ruleNamed(name), receivers: receivers, latency: latency}
			c.simulate()
			t.Logf("%s, latency %s ms: CV %.3f, blind %.3f", name, millis(latency), mean(c.cv), mean(blind.cv))
			if mean(c.cv) > 0.5*mean(blind.cv) {
				t.Errorf("%s, latency %s ms: CV %.3f, blind %.3f", name, millis(latency), mean(c.cv), mean(blind.cv))
			}
		}
	}
}

// TestNearAndBalanced checks that with costs most migrations stay within a host, each
// of which has an eighth of the receivers, while loads differ as little as without
// costs.
func TestNearAndBalanced(t *testing.T) {
	plain := simulation{rule: ruleNamed("eight-least"), receivers: 32, latency: 300}
	plain.simulate()
	c := simulation{rule: ruleNamed("eight-near"), receivers: 32, latency: 300}
	c.simulate()
	share := float64(c.near) / float64(c.moves)
	t.Logf("%.0f %% of %d moves are near; CV %.3f, %.3f without costs", 100*share, c.moves, mean(c.cv), mean(plain.cv))
	if share < 0.5 || mean(c.cv) > 1.5*mean(plain.cv) || c.returns > 0 {
		t.Errorf("%.0f %% of moves are near; CV %.3f, %.3f without costs; %d returns", 100*share, mean(c.cv), mean(plain.cv), c.returns)
	}
}

// BenchmarkMarket prints, for every rule, size, latency and shape of load: messages per
// migration, the coefficient of variation of the receivers' KV load (per mille; steady:
// mean over two seconds, burst of 20 each: eight seconds later), and the mean wait from
// offer to transfer.
func BenchmarkMarket(b *testing.B) {
	for _, burst := range []int{0, 20} {
		for _, latency := range []policies.Micros{300, 20 * policies.Millisecond} {
			for _, receivers := range []int{16, 128, 1000} {
				for _, r := range rules {
					load := "steady"
					if burst > 0 {
						load = "burst"
					}
					b.Run(strings.Join([]string{load, millis(latency) + "ms", fmt.Sprint(receivers), r.name}, "/"), func(b *testing.B) {
						var c simulation
						for b.Loop() {
							c = simulation{rule: r, receivers: receivers, latency: latency, burst: burst}
							c.simulate()
						}
						b.ReportMetric(float64(c.messages)/float64(c.moves), "messages/move")
						b.ReportMetric(1000*mean(c.cv), "CV‰")
						b.ReportMetric(1000*c.wait/float64(c.moves), "wait-ms")
						b.ReportMetric(float64(c.returns), "returns")
					})
				}
			}
		}
	}
}
