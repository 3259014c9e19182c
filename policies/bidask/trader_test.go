package bidask

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// newTwoStages returns the trader of a replica a, of stage [0,100), and the plan; b is the next
// stage.
func newTwoStages(t *testing.T, edits ...func(*TraderConfig)) (*Trader, policies.Plan) {
	t.Helper()
	plan := policies.Plan{Model: "m", Stages: []policies.Stage{{High: 100, Replicas: []policies.ReplicaID{"a"}}, {Low: 100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b"}}}}
	view := place.NewPeers(place.PeersConfig{Self: "a"})
	view.SetView(plan, []policies.Replica{{ID: "a", Peer: "a"}, {ID: "b", Peer: "b"}})
	c := TraderConfig{OfferRules: OfferRules{Self: "a"}, Peers: view}
	for _, edit := range edits {
		edit(&c)
	}
	return testkit.Must(NewTrader(c)), plan
}

// grown returns requests that have outgrown the first stage.
func grown(ids ...string) (out []Resident) {
	for _, id := range ids {
		out = append(out, Resident{Request: policies.Request{ID: id, Input: 5000, Output: 1}})
	}
	return out
}

// received returns the event of a message from b.
func received(now policies.Micros, k MessageKind, d Deal, h policies.Migration) Event {
	return Event{Kind: MessageReceived, Now: now, Message: Message{Kind: k, From: "b", To: "a", Deal: d, Migration: h}}
}

func TestTraderConfig(t *testing.T) {
	peers := place.NewPeers(place.PeersConfig{Self: "a"})
	for name, c := range map[string]TraderConfig{
		"no peers": {OfferRules: OfferRules{Self: "a"}}, "no name": {Peers: peers},
		"machine": {OfferRules: OfferRules{Self: "a"}, Peers: peers, Machine: Rules{MaxConcurrentSends: -1}}, "selector": {OfferRules: OfferRules{Self: "a", SpillPercent: -1}, Peers: peers},
	} {
		if _, err := NewTrader(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestSale checks the life of an offer: its request is for sale once, does not count as a
// resident for a moment after it has left, and may be offered again when it comes back later.
func TestSale(t *testing.T) {
	x, plan := newTwoStages(t)
	s := &Situation{Ready: true, CanReceive: true, Capacity: 1 << 20, Plan: plan, Residents: grown("q")}
	offers := func(now policies.Micros, want int) Deal {
		t.Helper()
		out := x.Scan(now, s, nil)
		if n, _, _ := x.Deals(); n != want {
			t.Fatalf("at %d: %d offers, want %d", now, n, want)
		}
		if len(out) == 0 {
			return Deal{}
		}
		return out[0].Message.Deal
	}
	deal := offers(0, 1)
	offers(1, 1)
	move := policies.Migration{Request: "q", Length: 5001, Cause: policies.Growth}
	x.Step(received(2, Bid, deal, policies.Migration{}), nil)
	out := x.Step(received(3, Pull, deal, policies.Migration{}), nil)
	if _, exporting, _ := x.Deals(); exporting != 1 || !slices.ContainsFunc(out, func(a Action) bool { return a.Kind == Export }) {
		t.Fatalf("the buyer pulls, and the trader answers %+v", out)
	}
	if got, ok := x.exports[deal]; !ok || got != move {
		t.Errorf("exports %+v, want %+v", got, move)
	}
	s.Residents = nil
	offers(4, 1) // its transfer runs: the executor decides what becomes of it
	s.Residents = grown("q")
	x.Step(Event{Kind: TransferDone, Now: 5, Deal: deal}, nil)
	if c := x.Counts(); c.Offered[policies.Growth] != 1 || c.MovedOut[policies.Growth] != 1 || c.FailedOut[policies.Growth] != 0 {
		t.Errorf("%+v", c)
	}
	offers(6, 0)
	offers(5+departedRetention, 1)
	s.Residents = nil
	offers(6+departedRetention, 0) // it has ended
	x.departed["p"] = 1 << 40
	if offers(7+departedRetention, 0); len(x.departed) != 0 {
		t.Errorf("requests that are not here any more are remembered: %v", x.departed)
	}
}

// TestKeepRequests checks that a replica that keeps its requests offers none, whatever the reason
// would be, and still publishes its load and buys.
func TestKeepRequests(t *testing.T) {
	for _, keep := range []bool{false, true} {
		peers := new(recordedPeers)
		x, plan := newTwoStages(t, func(c *TraderConfig) {
			peers.Peers, c.Peers = c.Peers, peers
			c.KeepRequests = keep
		})
		s := &Situation{Ready: true, CanReceive: true, Draining: true, Capacity: 1 << 20, Plan: plan, Load: policies.Load{Held: 10_002}, Residents: grown("p", "q")}
		if out := x.Scan(0, s, nil); keep != (len(out) == 0) {
			t.Errorf("keeps requests %v: a draining replica with two requests that have outgrown its stage acts: %+v", keep, out)
		}
		if peers.load.Held != 10_002 || !peers.load.Draining {
			t.Errorf("keeps requests %v: its load is %+v", keep, peers.load)
		}
		s.Draining, s.Residents = false, nil
		x.Scan(1, s, nil)
		out := x.Step(received(2, Ask, Deal{Seller: "b", Number: 1}, policies.Migration{Request: "r", Length: 50, Cause: policies.Growth}), nil)
		if len(out) != 1 || out[0].Message.Kind != Bid {
			t.Errorf("keeps requests %v: asked to buy, it answers %+v", keep, out)
		}
	}
}

// recordedPeers records the replica's own load.
type recordedPeers struct {
	Peers
	load place.PeerLoad
}

// SetOwnLoad implements Peers.
func (p *recordedPeers) SetOwnLoad(l place.PeerLoad) {
	p.load = l
	p.Peers.SetOwnLoad(l)
}

// TestFailedTransfers checks what is counted of transfers that fail, in both directions: those of requests that had
// ended are no failures.
func TestFailedTransfers(t *testing.T) {
	for _, over := range []bool{false, true} {
		testFailedTransfers(t, over)
	}
}

func testFailedTransfers(t *testing.T, over bool) {
	x, plan := newTwoStages(t)
	s := &Situation{Ready: true, CanReceive: true, Capacity: 1 << 20, Plan: plan, Residents: grown("q")}
	deal := x.Scan(0, s, nil)[0].Message.Deal
	x.Step(received(1, Bid, deal, policies.Migration{}), nil)
	x.Step(received(2, Pull, deal, policies.Migration{}), nil)
	x.Step(Event{Kind: TransferFailed, Now: 3, Deal: deal, Over: over}, nil)
	bought := Deal{Seller: "b", Number: 7}
	x.Step(received(4, Confirm, bought, policies.Migration{Request: "p", Length: 50, Cause: policies.Growth}), nil)
	if x.Incoming() != 50 {
		t.Errorf("%d tokens come, want 50", x.Incoming())
	}
	x.Step(Event{Kind: Reserved, Now: 5, Deal: bought}, nil)
	x.Step(received(6, Grant, bought, policies.Migration{}), nil)
	if _, _, importing := x.Deals(); importing != 1 {
		t.Fatalf("%d imports", importing)
	}
	x.Step(Event{Kind: TransferFailed, Now: 7, Deal: bought, Over: over}, nil)
	want := uint64(1)
	if over {
		want = 0
	}
	if c := x.Counts(); c.FailedOut[policies.Growth] != want || c.FailedIn != want || c.MovedIn != 0 || c.Returned[ReturnTransferFailed] != 1 {
		t.Errorf("%+v", c)
	}
	if offers, exporting, importing := x.Deals(); offers+exporting+importing != 0 || x.Throughput() != 0 {
		t.Errorf("%d offers, %d exports and %d imports are left; throughput %d", offers, exporting, importing, x.Throughput())
	}
}

// TestThroughput checks that the rate of transfers is measured from Import to their end, and is
// part of the occupancy from the next scan on.
func TestThroughput(t *testing.T) {
	x, plan := newTwoStages(t)
	s := &Situation{Ready: true, CanReceive: true, Capacity: 1 << 20, Plan: plan}
	x.Scan(0, s, nil)
	deal := Deal{Seller: "b", Number: 7}
	x.Step(received(0, Confirm, deal, policies.Migration{Request: "p", Length: 3000, Cause: policies.Growth}), nil)
	x.Step(Event{Kind: Reserved, Deal: deal}, nil)
	x.Step(received(policies.Second, Grant, deal, policies.Migration{}), nil)
	x.Step(Event{Kind: TransferDone, Now: 3 * policies.Second, Deal: deal}, nil)
	if x.Scan(4*policies.Second, s, nil); x.Throughput() != 1500 || x.occupancy.Throughput != 1500 || x.Counts().MovedIn != 1 {
		t.Errorf("3,000 tokens in two seconds: %d, %+v", x.Throughput(), x.occupancy)
	}
}

// TestSameCallsSameActions checks that the order of withdrawals does not depend on maps.
func TestSameCallsSameActions(t *testing.T) {
	run := func() (log string) {
		x, plan := newTwoStages(t)
		ids := make([]string, 16)
		for i := range ids {
			ids[i] = fmt.Sprint("q", i)
		}
		s := &Situation{Ready: true, CanReceive: true, Capacity: 1 << 20, Plan: plan, Residents: grown(ids...)}
		out := x.Scan(0, s, nil)
		s.Residents = nil
		return fmt.Sprintf("%+v", x.Scan(1, s, out))
	}
	want := run()
	for range 20 {
		if got := run(); got != want {
			t.Fatalf("%s\nthen\n%s", want, got)
		}
	}
}

// TestOccupancyByEngine checks that bids and spills follow the KV that the engine reports, of
// the size that it reports.
func TestOccupancyByEngine(t *testing.T) {
	x, plan := newTwoStages(t)
	s := &Situation{
		Ready: true, CanReceive: true, Capacity: 1 << 20, Plan: plan,
		Load: policies.Load{Held: 22_549, Promised: 10, Engine: policies.EngineLoad{Capacity: 8192, KVUsed: 4000}},
	}
	x.Scan(0, s, nil)
	if p := x.occupancy; p.Capacity != 8192 || p.Held != 4000 || p.Promised != 10 || !p.Fits(4000) || p.Fits(4200) {
		t.Errorf("occupancy %+v", p)
	}
	s.Load.Engine = policies.EngineLoad{}
	x.Scan(1, s, nil)
	if p := x.occupancy; p.Capacity != 1<<20 || p.Held != 22_549 {
		t.Errorf("without the engine's report: %+v", p)
	}
	for name, leave := range map[string]func(*Situation){
		"draining": func(s *Situation) { s.Draining = true }, "retired": func(s *Situation) { s.Retired = true },
		"not ready": func(s *Situation) { s.Ready = false }, "cannot receive": func(s *Situation) { s.CanReceive = false },
	} {
		one := *s
		leave(&one)
		if x.Scan(2, &one, nil); !x.occupancy.Draining || one.Leaving() != (name != "cannot receive") || x.OwnLoad(&one).Draining != one.Leaving() {
			t.Errorf("%s: %+v", name, x.occupancy)
		}
	}
}

// TestOwnLoad checks what the peers learn of a load: what waits is what no cache is expected to have.
func TestOwnLoad(t *testing.T) {
	x, plan := newTwoStages(t)
	s := &Situation{Ready: true, CanReceive: true, Plan: plan, Load: policies.Load{Running: 2, Waiting: 1, Held: 300, Promised: 1000, Cached: 600}}
	if got, want := x.OwnLoad(s), (place.PeerLoad{Waiting: 400, Total: 1300, Held: 300, Running: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	s.Load.Cached = 2000 // a report that is wrong
	if got := x.OwnLoad(s).Waiting; got != 0 {
		t.Errorf("%v waiting", got)
	}
}

// movingPeers is Peers of which one request moves.
type movingPeers struct {
	Peers
	move  place.Move
	asked []place.MoveQuery
}

// FindMove implements Peers.
func (p *movingPeers) FindMove(_ policies.Micros, q place.MoveQuery) (place.Move, bool) {
	p.asked = append(p.asked, q)
	return p.move, len(q.Movable) > 0
}

// TestCheaperMove checks that the request that costs less elsewhere is offered there and nowhere else, that it leaves
// from then on, and that requests that have just come stay.
func TestCheaperMove(t *testing.T) {
	peers := &movingPeers{move: place.Move{Resident: 1, To: "b", Gain: 1}}
	x, plan := newTwoStages(t, func(c *TraderConfig) { peers.Peers, c.Peers = c.Peers, peers })
	s := &Situation{Ready: true, CanReceive: true, Capacity: 1 << 20, Plan: plan, Priced: true}
	for _, id := range []string{"p", "q", "new", "rescued"} {
		s.Residents = append(s.Residents, Resident{Request: policies.Request{ID: id, Input: 10, Output: 1}})
	}
	now := firstCooldown
	s.Residents[2].Since, s.Residents[3].Waiting = now, true
	out := x.Scan(now, s, nil)
	want := Message{Kind: Ask, From: "a", To: "b", Deal: Deal{Seller: "a"}, Migration: policies.Migration{Request: "q", Length: 11, Cause: policies.Cheaper}, Load: 11}
	if len(out) != 1 || out[0].Message != want {
		t.Fatalf("%+v, want an ask %+v", out, want)
	}
	if got := fmt.Sprint(peers.asked[0].Movable); got != "[0 1]" {
		t.Errorf("movable are %s; one has just come, and one has no token yet", got)
	}
	x.Scan(now+1, s, nil)
	if of := peers.asked[1].Residents; !of[1].Leaving || of[0].Leaving || !of[3].Prefilling || of[0].Prefilling || fmt.Sprint(peers.asked[1].Movable) != "[0]" {
		t.Errorf("after its offer: %+v, movable %v", of, peers.asked[1].Movable)
	}
	// It gets no bid: it is not offered again for a while.
	x.Step(received(now+2, NoBid, out[0].Message.Deal, policies.Migration{}), nil)
	if x.Scan(now+3, s, nil); fmt.Sprint(peers.asked[2].Movable) != "[0]" {
		t.Errorf("after its return movable are %v", peers.asked[2].Movable)
	}
}
