package bidask_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// market is a small fleet in which a random source decides about messages, engines and
// transfers. It replaces the driver of every machine and keeps its own records, with
// which it checks the actions of the machines.
type market struct {
	rng     *rand.Rand
	faults  faults
	now     policies.Micros
	nodes   []*node
	flight  []bidask.Message
	flows   []*transfer // in progress, or ended but not yet reported to both sides
	owner   map[string]*node
	started int // requests
	moves   int
	ends    int // of offers, on both sides
	offers  int
	sent    int
	log     []string
	// faultless markets return only requests that no candidate may buy or has room for.
	faultless bool
}

// faults are probabilities in per mille. slow is how often time passes before messages
// in flight are delivered.
type faults struct{ lose, double, kill, refuse, fail, end, drain, slow int }

// node is one replica.
type node struct {
	id       policies.ReplicaID
	life     int // incarnations before this one
	machine  *bidask.Machine
	holds    map[bidask.Deal]bool   // reserved, or requested to be
	asks     []bidask.Deal          // reservations without an answer yet
	offers   map[bidask.Deal]string // offered requests, by the market's own count
	capacity policies.Tokens
	draining bool
}

// transfer is a deal that at least one side has begun.
type transfer struct {
	deal               bidask.Deal
	seller, buyer      *node
	request            string
	exported, imported side
	committed          bool
	over               bool // decided
}

// side is the progress of one side of a transfer.
type side int

const (
	untouched side = iota
	begun
	reported // its machine knows the end
)

func newMarket(seed uint64, f faults, slots int) *market {
	m := &market{rng: rand.New(rand.NewPCG(seed, 77)), faults: f, owner: map[string]*node{}, faultless: f == faults{}}
	for i := range 3 + m.rng.IntN(4) {
		n := &node{id: policies.ReplicaID(rune('a' + i)), capacity: 1 << 20}
		m.nodes = append(m.nodes, n)
		m.boot(n, slots)
	}
	return m
}

// boot starts a new machine for a node.
func (m *market) boot(n *node, slots int) {
	c := bidask.Rules{Self: n.id, FirstDeal: uint64(n.life) << 32, MaxConcurrentSends: slots, MaxConcurrentReceives: slots, Sample: 1 + m.rng.IntN(4), MaxWins: 8, MaxSkips: 1 + m.rng.IntN(3)}
	if m.rng.IntN(2) == 0 {
		c.Selector, c.WaitForPromise = bidask.Paper{}, m.rng.IntN(2) == 0
	}
	machine := testkit.Must(bidask.NewMachine(c))
	n.machine, n.holds, n.asks, n.offers = machine, map[bidask.Deal]bool{}, nil, map[bidask.Deal]string{}
	m.step(n, bidask.Event{Kind: bidask.OccupancyMeasured, Occupancy: policies.Occupancy{Capacity: n.capacity}})
}

// failure is the panic value of a broken invariant; run turns it into an error.
type failure string

func (m *market) must(ok bool, format string, args ...any) {
	if !ok {
		panic(failure(fmt.Sprintf(format, args...)))
	}
}

func (m *market) chance(perMille int) bool { return m.rng.IntN(1000) < perMille }

// step passes an event to a machine and carries out its actions.
func (m *market) step(n *node, ev bidask.Event) {
	ev.Now = m.now
	m.log = append(m.log, fmt.Sprintf("%s %s: event %d, %v %v from %s, deal %v, request %s, peer %s", millis(m.now), n.id, ev.Kind, ev.Message.Kind, ev.Message.Deal, ev.Message.From, ev.Deal, ev.Migration.Request, ev.Peer))
	actions := n.machine.Step(ev, nil)
	if err := n.machine.Check(); err != nil {
		m.must(false, "%s: %v", n.id, err)
	}
	for _, a := range actions {
		m.log = append(m.log, "    "+describe(a))
		m.do(n, a)
	}
}

func (m *market) do(n *node, a bidask.Action) {
	switch a.Kind {
	case bidask.Send:
		m.must(a.Message.From == n.id && a.Message.To != n.id, "message %+v from %s", a.Message, n.id)
		m.sent++
		m.flight = append(m.flight, a.Message)
	case bidask.Reserve:
		m.must(!n.holds[a.Deal], "%s reserves %v twice", n.id, a.Deal)
		m.must(a.Deadline > m.now, "%s reserves without a lease", n.id)
		n.holds[a.Deal] = true
		n.asks = append(n.asks, a.Deal)
	case bidask.Release:
		m.must(n.holds[a.Deal], "%s releases %v, which is not reserved", n.id, a.Deal)
		delete(n.holds, a.Deal)
		n.asks = slices.DeleteFunc(n.asks, func(d bidask.Deal) bool { return d == a.Deal })
		if x := m.transfer(a.Deal, n); x != nil {
			m.must(x.imported != begun, "%s releases %v under its transfer", n.id, a.Deal)
		}
	case bidask.Export:
		m.must(a.Deal.Seller == n.id, "%s exports %v", n.id, a.Deal)
		m.must(n.offers[a.Deal] == a.Migration.Request, "%s exports %v, which is not for sale", n.id, a.Deal)
		m.must(m.owner[a.Migration.Request] == n, "%s exports %s, which it does not own", n.id, a.Migration.Request)
		x := m.begin(a.Deal, n, m.node(a.Peer), a.Migration.Request)
		m.must(x.exported == untouched, "%v is exported twice", a.Deal)
		x.exported = begun
	case bidask.Import:
		m.must(n.holds[a.Deal] && !slices.Contains(n.asks, a.Deal), "%s imports %v without a reservation", n.id, a.Deal)
		x := m.begin(a.Deal, m.node(a.Peer), n, a.Migration.Request)
		m.must(x.imported != begun, "%v is imported twice at once", a.Deal)
		x.imported = begun
	case bidask.Abort:
		if x := m.transfer(a.Deal, nil); x != nil && !x.over && (x.exported != begun || x.imported != begun || m.chance(700)) {
			x.over = true // otherwise it arrives too late
		}
	case bidask.Return:
		m.must(a.Reason != 0, "%v is returned without a reason", a.Deal)
		m.must(n.offers[a.Deal] == a.Migration.Request, "%v returns %s, which it does not offer", a.Deal, a.Migration.Request)
		x := m.transfer(a.Deal, nil)
		m.must(x == nil || x.exported == reported && !x.committed, "%v is returned under its transfer", a.Deal)
		delete(n.offers, a.Deal)
		if m.faultless {
			m.must(a.Reason == bidask.ReturnNoCandidates || a.Reason == bidask.ReturnNoBids || a.Reason == bidask.ReturnRejected, "%v is returned: %v", a.Deal, a.Reason)
		}
		m.must(m.owner[a.Migration.Request] == n || m.owner[a.Migration.Request] == nil, "%s returns %s, which it sold", n.id, a.Migration.Request)
		m.ends++
	}
	exports, imports := 0, 0
	for _, x := range m.flows {
		if x.seller == n && x.exported == begun {
			exports++
		}
		if x.buyer == n && x.imported == begun {
			imports++
		}
	}
	m.must(exports <= 4 && imports <= 4, "%s has %d exports and %d imports", n.id, exports, imports)
}

func (m *market) node(id policies.ReplicaID) *node { return m.nodes[id[0]-'a'] }

// transfer finds a transfer; if buyer is given, a transfer to it.
func (m *market) transfer(d bidask.Deal, buyer *node) *transfer {
	for _, x := range m.flows {
		if x.deal == d && (buyer == nil || x.buyer == buyer) {
			return x
		}
	}
	return nil
}

func (m *market) begin(d bidask.Deal, seller, buyer *node, request string) *transfer {
	x := m.transfer(d, buyer)
	if x == nil {
		x = &transfer{deal: d, seller: seller, buyer: buyer, request: request}
		m.flows = append(m.flows, x)
	}
	return x
}

// progress advances one transfer by a step: it commits, fails, or one side is notified.
func (m *market) progress() {
	x := m.flows[m.rng.IntN(len(m.flows))]
	switch {
	case !x.over && x.exported == begun && x.imported == begun:
		x.over = true
		if m.chance(1000 - m.faults.fail) {
			x.committed = true
			m.must(m.owner[x.request] == x.seller || m.owner[x.request] == nil, "%s moves without its owner", x.request)
			if m.owner[x.request] != nil {
				m.owner[x.request] = x.buyer
			}
		}
	case !x.over && x.imported == begun && x.exported != begun:
		x.over = true // the seller's side had ended before
	case !x.over && x.exported == begun && !m.faultless && m.chance(100):
		x.over = true // the buyer never began
	case x.over && x.exported == begun && m.chance(500):
		x.exported = reported
		if x.committed {
			delete(x.seller.offers, x.deal)
			m.ends, m.moves = m.ends+1, m.moves+1
			m.step(x.seller, bidask.Event{Kind: bidask.TransferDone, Deal: x.deal})
		} else {
			m.step(x.seller, bidask.Event{Kind: bidask.TransferFailed, Deal: x.deal})
		}
	case x.over && x.imported == begun:
		x.imported = reported
		if x.committed {
			m.must(x.buyer.holds[x.deal], "%v came without a reservation", x.deal)
			delete(x.buyer.holds, x.deal)
			m.step(x.buyer, bidask.Event{Kind: bidask.TransferDone, Deal: x.deal})
		} else {
			m.step(x.buyer, bidask.Event{Kind: bidask.TransferFailed, Deal: x.deal})
		}
	}
	m.sweep()
}

// sweep removes the transfers whose end both sides know.
func (m *market) sweep() {
	m.flows = slices.DeleteFunc(m.flows, func(x *transfer) bool {
		return x.over && x.exported != begun && x.imported != begun
	})
}

// deliver delivers a random message that is in flight.
func (m *market) deliver() {
	at := m.rng.IntN(len(m.flight))
	msg := m.flight[at]
	if !m.chance(m.faults.double) {
		m.flight[at] = m.flight[len(m.flight)-1]
		m.flight = m.flight[:len(m.flight)-1]
	}
	if m.chance(m.faults.lose) {
		return
	}
	m.step(m.node(msg.To), bidask.Event{Kind: bidask.MessageReceived, Message: msg})
}

// answer decides whether a reservation is granted.
func (m *market) answer(n *node) {
	d := n.asks[0]
	n.asks = n.asks[1:]
	if m.chance(m.faults.refuse) {
		delete(n.holds, d)
		m.step(n, bidask.Event{Kind: bidask.ReservationRefused, Deal: d})
		return
	}
	m.step(n, bidask.Event{Kind: bidask.Reserved, Deal: d})
}

// offer offers a random request of a node for sale.
func (m *market) offer(n *node) {
	h := policies.Migration{Request: fmt.Sprint("q", m.started), Length: policies.Tokens(1 + m.rng.IntN(1000)), Cause: policies.Growth}
	m.started++
	m.owner[h.Request] = n
	var candidates []policies.ReplicaID
	for _, o := range m.nodes {
		if m.rng.IntN(4) > 0 {
			candidates = append(candidates, o.id)
		}
	}
	// The machine numbers its deals consecutively; the market counts in parallel.
	n.offers[bidask.Deal{Seller: n.id, Number: n.machine.NextNumber()}] = h.Request
	m.offers++
	m.step(n, bidask.Event{Kind: bidask.Offered, Migration: h, Candidates: candidates, Seed: m.rng.Uint64()})
}

// end ends the request of a random offer.
func (m *market) end(n *node) {
	deals := slices.SortedFunc(maps.Keys(n.offers), func(a, b bidask.Deal) int { return cmp.Compare(a.Number, b.Number) })
	if len(deals) == 0 {
		return
	}
	request := n.offers[deals[m.rng.IntN(len(deals))]]
	m.owner[request] = nil
	m.step(n, bidask.Event{Kind: bidask.Withdrawn, Migration: policies.Migration{Request: request}})
}

// kill ends a node with all its state, and informs some of the others; the node
// restarts at once without any state.
func (m *market) kill(n *node) {
	m.ends += len(n.offers)
	for _, x := range m.flows {
		switch n {
		case x.seller:
			x.exported = reported
		case x.buyer:
			x.imported = reported
		default:
			continue
		}
		x.over = true
	}
	m.sweep()
	for request, o := range m.owner {
		if o == n {
			m.owner[request] = nil
		}
	}
	n.life++
	m.boot(n, 4)
	for _, o := range m.nodes {
		if o != n && m.rng.IntN(2) == 0 {
			m.step(o, bidask.Event{Kind: bidask.PeerGone, Peer: n.id})
		}
	}
}

// wait advances time to the next deadline of any machine.
func (m *market) wait() bool {
	found := false
	var next policies.Micros
	for _, n := range m.nodes {
		if at, ok := n.machine.Next(); ok && (!found || at < next) {
			next, found = at, true
		}
	}
	if !found {
		return false
	}
	m.now = max(m.now, next)
	for _, n := range m.nodes {
		if at, ok := n.machine.Next(); ok && at <= m.now {
			m.step(n, bidask.Event{Kind: bidask.DeadlineReached})
			again, ok := n.machine.Next()
			m.must(!ok || again > m.now, "%s wants to tick at %d, and at %d again", n.id, m.now, again)
		}
	}
	return true
}

// run runs rounds of random steps, then lets everything end without faults.
func (m *market) run(rounds int) (err error) {
	defer func() {
		if f, ok := recover().(failure); ok {
			err = fmt.Errorf("%s\n%s", f, strings.Join(m.log[max(0, len(m.log)-60):], "\n"))
		}
	}()
	for range rounds {
		n := m.nodes[m.rng.IntN(len(m.nodes))]
		switch k := m.rng.IntN(100); {
		case k < 6:
			m.offer(n)
		case k < 7 && m.chance(m.faults.end):
			m.end(n)
		case k < 8 && m.chance(m.faults.kill):
			m.kill(n)
		case k < 9 && m.chance(m.faults.drain):
			n.draining = !n.draining
			m.step(n, bidask.Event{Kind: bidask.OccupancyMeasured, Occupancy: policies.Occupancy{Capacity: n.capacity, Draining: n.draining}})
		case k < 30 && len(n.asks) > 0:
			m.answer(n)
		case k < 45 && len(m.flows) > 0:
			m.progress()
		case k < 47 && !m.faultless && (len(m.flight) == 0 || m.chance(m.faults.slow)):
			m.wait()
		case len(m.flight) > 0:
			m.deliver()
		}
	}
	m.faults.lose, m.faults.double, m.faults.kill, m.faults.end, m.faults.drain = 0, 0, 0, 0, 0
	end := m.now + 300*policies.Second
	for quiet := false; !quiet; {
		quiet = true
		for len(m.flight) > 0 {
			m.deliver()
			quiet = false
		}
		for _, n := range m.nodes {
			for len(n.asks) > 0 {
				m.answer(n)
				quiet = false
			}
		}
		for len(m.flight) == 0 && len(m.flows) > 0 && (quiet || m.rng.IntN(3) > 0) {
			stuck := true
			for _, x := range m.flows {
				stuck = stuck && !x.over && x.imported != begun
			}
			if stuck {
				break // the other side begins later, or an Abort ends it
			}
			m.progress()
			quiet = false
		}
		if quiet {
			quiet = !m.wait()
		}
		m.must(m.now < end, "not at rest after 300 s")
	}
	for _, n := range m.nodes {
		m.must(n.machine.Idle(), "%s is at rest and not idle", n.id)
		m.must(len(n.holds) == 0, "%s still reserves %v", n.id, n.holds)
		m.must(len(n.offers) == 0, "%s has not ended %v", n.id, n.offers)
	}
	m.must(m.ends == m.offers, "%d offers, %d ends", m.offers, m.ends)
	m.must(len(m.flows) == 0, "%d transfers are not over", len(m.flows))
	return nil
}

// TestMarket runs random markets with every kind of fault.
func TestMarket(t *testing.T) {
	moves := 0
	seeds := testkit.Size(120, 400)
	for seed := range uint64(seeds) {
		m := newMarket(seed, faults{lose: 60, double: 60, kill: 200, refuse: 50, fail: 100, end: 300, drain: 200, slow: 400 * int(seed/4%2)}, 1+int(seed%4))
		if err := m.run(600); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		moves += m.moves
	}
	t.Logf("%d moves", moves)
	if moves < seeds*5/4 {
		t.Errorf("only %d moves", moves)
	}
}

// TestFaultless checks that every offer with a possible buyer is transferred if every
// message arrives, in any order, and engines and transfers succeed. One slot in each
// direction makes waiting likely, and a cycle of waiting would be found.
func TestFaultless(t *testing.T) {
	moves, returns := 0, 0
	for seed := range uint64(testkit.Size(50, 150)) {
		m := newMarket(seed, faults{}, 1+int(seed%2))
		if err := m.run(600); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		moves, returns = moves+m.moves, returns+m.ends-m.moves
	}
	// Returned requests were refused because there was no candidate or no room.
	t.Logf("%d moves, %d returns", moves, returns)
	if returns*10 > moves {
		t.Errorf("%d moves, %d returns", moves, returns)
	}
}

// FuzzMarket lets the fuzzer choose the seed and the faults.
func FuzzMarket(f *testing.F) {
	f.Add(uint64(1), uint8(60), uint8(60), uint8(20), uint8(50))
	f.Fuzz(func(t *testing.T, seed uint64, lose, double, kill, fail uint8) {
		m := newMarket(seed, faults{lose: int(lose), double: int(double), kill: int(kill), refuse: int(fail), fail: int(fail), end: 100, drain: 100, slow: int(kill)}, 1+int(seed%4))
		testkit.NoError(t, m.run(400))
	})
}
