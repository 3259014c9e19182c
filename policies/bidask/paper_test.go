package bidask_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// The tests of this file compare the paper's settings with section "Decentralized Load
// (Re)Balancing" of the paper, written once more as directly as possible.

// paperReceiver is the paper's receiver: it repeatedly dequeues the request with the highest
// priority, which is its sender's load, and skips those whose sender is transmitting. A request
// that failed too often is announced to its sender as starving, and the receiver waits for it.
type paperReceiver struct {
	slots, patience int
	delay           policies.Micros
	now             policies.Micros
	loads           map[policies.ReplicaID]policies.Tokens
	queue           []bidask.Deal // in order of arrival
	failed          map[bidask.Deal]int
	skipped         map[bidask.Deal]policies.Micros // until when
	taken           map[bidask.Deal]bool            // being asked for, or transmitted
	waiting         *bidask.Deal
	sent            []string
}

func (r *paperReceiver) send(what string, d bidask.Deal) {
	r.sent = append(r.sent, what+" "+d.String())
}

func (r *paperReceiver) dequeue() {
	for r.waiting == nil && len(r.taken) < r.slots {
		var next *bidask.Deal
		for i, d := range r.queue {
			if r.taken[d] || r.skipped[d] > r.now {
				continue
			}
			if next == nil || r.loads[d.Seller] > r.loads[next.Seller] {
				next = &r.queue[i]
			}
		}
		if next == nil {
			return
		}
		r.taken[*next] = true
		r.send("pull", *next)
	}
}

func (r *paperReceiver) busy(d bidask.Deal) {
	delete(r.taken, d)
	r.failed[d]++
	r.skipped[d] = r.now + r.delay
	if r.failed[d] >= r.patience && r.waiting == nil {
		r.waiting = &d
		r.send("starving", d)
	}
	r.dequeue()
}

func (r *paperReceiver) ready(d bidask.Deal) {
	r.waiting = nil
	r.taken[d] = true
	r.send("pull", d)
	r.dequeue()
}

func (r *paperReceiver) done(d bidask.Deal) {
	delete(r.taken, d)
	r.queue = slices.DeleteFunc(r.queue, func(o bidask.Deal) bool { return o == d })
	r.dequeue()
}

// TestPaperReceiver plays random sequences of replies to both receivers; 10,000 with
// CASCADE_TEST_ALL=1.
func TestPaperReceiver(t *testing.T) {
	starved, skips := 0, 0
	inputs := testkit.Size(1000, 10_000)
	for i := range uint64(inputs) {
		rng := rand.New(rand.NewPCG(15, i))
		const hour = 3600 * policies.Second
		r := &paperReceiver{
			slots: 1 + rng.IntN(3), patience: 1 + rng.IntN(3), delay: 5 * policies.Millisecond,
			loads: map[policies.ReplicaID]policies.Tokens{}, failed: map[bidask.Deal]int{}, skipped: map[bidask.Deal]policies.Micros{}, taken: map[bidask.Deal]bool{},
		}
		m := testkit.Must(bidask.NewMachine(bidask.Rules{
			Self: "buyer", WaitForPromise: true, MaxConcurrentReceives: r.slots, MaxSkips: r.patience,
			RetryDelay: r.delay, AnswerTimeout: hour, PromiseTimeout: hour, Lease: hour, TransferTimeout: hour,
		}))
		var got []string
		var played []bidask.Event
		step := func(ev bidask.Event) {
			ev.Now = r.now
			played = append(played, ev)
			for _, a := range m.Step(ev, nil) {
				if a.Kind == bidask.Send && (a.Message.Kind == bidask.Pull || a.Message.Kind == bidask.Starving) {
					got = append(got, a.Message.Kind.String()+" "+a.Message.Deal.String())
				}
			}
		}
		message := func(kind bidask.MessageKind, d bidask.Deal) {
			step(bidask.Event{Kind: bidask.MessageReceived, Message: bidask.Message{
				Kind: kind, From: d.Seller, To: "buyer", Deal: d, Load: r.loads[d.Seller], Migration: policies.Migration{Request: d.String(), Length: 10},
			}})
		}
		step(bidask.Event{Kind: bidask.OccupancyMeasured, Occupancy: policies.Occupancy{Capacity: 1 << 40}})
		transmitted := map[bidask.Deal]bool{}
		for n := uint64(1); n <= 40; n++ {
			var asked, moving []bidask.Deal
			for _, d := range r.queue {
				switch {
				case transmitted[d]:
					moving = append(moving, d)
				case r.taken[d]:
					asked = append(asked, d)
				}
			}
			switch x := rng.IntN(8); {
			case x < 2 && n < 25: // a sender hands a request over
				d := bidask.Deal{Seller: policies.ReplicaID(rune('a' + rng.IntN(4))), Number: n}
				r.loads[d.Seller] = policies.Tokens(rng.IntN(1_000_000))
				message(bidask.Confirm, d)
				step(bidask.Event{Kind: bidask.Reserved, Deal: d})
				r.queue = append(r.queue, d)
				r.dequeue()
			case x < 4 && len(asked) > 0: // it is transmitting
				skips++
				d := asked[rng.IntN(len(asked))]
				message(bidask.Busy, d)
				r.busy(d)
			case x < 5 && len(asked) > 0:
				d := asked[rng.IntN(len(asked))]
				message(bidask.Grant, d)
				transmitted[d] = true
			case x < 6 && len(moving) > 0:
				d := moving[rng.IntN(len(moving))]
				step(bidask.Event{Kind: bidask.TransferDone, Deal: d})
				r.done(d)
			case x < 7 && r.waiting != nil && len(r.taken) < r.slots: // the promised slot
				starved++
				d := *r.waiting
				message(bidask.Ready, d)
				r.ready(d)
			default:
				r.now += r.delay
				step(bidask.Event{Kind: bidask.DeadlineReached})
				r.dequeue()
			}
			if !slices.Equal(got, r.sent) {
				t.Fatalf("input %d: sent %v, by the paper %v\nafter %+v", i, got, r.sent, played)
			}
		}
	}
	t.Logf("%d busy senders, %d promised slots", skips, starved)
	if skips < inputs || starved < inputs {
		t.Error("the inputs are too easy")
	}
}

// paperSender is the paper's sender: it transmits so many requests at once, and the others fail. A receiver of which
// a request fails too often notifies it of the starvation, and it sends that request immediately after completing a
// current transmission, before any other; of several, the first notified.
type paperSender struct {
	slots    int
	starving []bidask.Deal        // notified, in this order
	next     map[bidask.Deal]bool // the slot that was freed is theirs
	sending  map[bidask.Deal]bool // being transmitted
	sent     []string
}

func (s *paperSender) send(what string, d bidask.Deal) {
	s.sent = append(s.sent, what+" "+d.String())
}

func (s *paperSender) serveStarving() {
	for len(s.starving) > 0 && len(s.sending)+len(s.next) < s.slots {
		d := s.starving[0]
		s.starving, s.next[d] = s.starving[1:], true
		s.send("ready", d)
	}
}

func (s *paperSender) requested(d bidask.Deal) {
	if !s.next[d] && len(s.sending)+len(s.next) >= s.slots {
		s.send("busy", d)
		return
	}
	delete(s.next, d)
	s.sending[d] = true
	s.send("grant", d)
}

func (s *paperSender) starves(d bidask.Deal) {
	if !s.next[d] && !slices.Contains(s.starving, d) {
		s.starving = append(s.starving, d)
	}
	s.serveStarving()
}

func (s *paperSender) completed(d bidask.Deal) {
	delete(s.sending, d)
	s.serveStarving()
}

// TestPaperSender plays random sequences of requests, notifications of starvation and ends of transmissions to both
// senders; 10,000 with CASCADE_TEST_ALL=1.
func TestPaperSender(t *testing.T) {
	busy, promised := 0, 0
	inputs := testkit.Size(1000, 10_000)
	for i := range uint64(inputs) {
		rng := rand.New(rand.NewPCG(16, i))
		const hour = 3600 * policies.Second
		s := &paperSender{slots: 1 + rng.IntN(3), next: map[bidask.Deal]bool{}, sending: map[bidask.Deal]bool{}}
		m := testkit.Must(bidask.NewMachine(bidask.Rules{
			Self: "seller", Sample: bidask.AskAll, Selector: bidask.Paper{}, WaitForPromise: true, MaxConcurrentSends: s.slots,
			BidTimeout: hour, AnswerTimeout: hour, PromiseTimeout: hour, Lease: hour, TransferTimeout: hour,
		}))
		var got, played []string
		var out []bidask.Action
		step := func(ev bidask.Event) {
			out = m.Step(ev, nil)
			for _, a := range out {
				if k := a.Message.Kind; a.Kind == bidask.Send && (k == bidask.Busy || k == bidask.Grant || k == bidask.Ready) {
					got = append(got, k.String()+" "+a.Message.Deal.String())
				}
			}
		}
		message := func(kind bidask.MessageKind, from policies.ReplicaID, d bidask.Deal) {
			played = append(played, kind.String()+" "+d.String())
			step(bidask.Event{Kind: bidask.MessageReceived, Message: bidask.Message{Kind: kind, From: from, To: "seller", Deal: d}})
		}
		buyers := map[bidask.Deal]policies.ReplicaID{}
		var open []bidask.Deal // handed over, and not transmitted yet
		for n := range 40 {
			var idle []bidask.Deal
			for _, d := range open {
				if !s.sending[d] {
					idle = append(idle, d)
				}
			}
			moving := slices.DeleteFunc(slices.Clone(open), func(d bidask.Deal) bool { return !s.sending[d] })
			switch x := rng.IntN(8); {
			case x < 2 && n < 25: // a receiver wins a request
				buyer := policies.ReplicaID(rune('a' + rng.IntN(4)))
				step(bidask.Event{Kind: bidask.Offered, Migration: policies.Migration{Request: fmt.Sprint(n), Length: 10}, Candidates: []policies.ReplicaID{buyer}})
				d := out[0].Message.Deal
				message(bidask.Bid, buyer, d)
				message(bidask.Accept, buyer, d)
				open, buyers[d] = append(open, d), buyer
			case x < 5 && len(idle) > 0:
				d := idle[rng.IntN(len(idle))]
				message(bidask.Pull, buyers[d], d)
				s.requested(d)
			case x < 6 && len(idle) > 0:
				d := idle[rng.IntN(len(idle))]
				message(bidask.Starving, buyers[d], d)
				s.starves(d)
			case len(moving) > 0:
				d := moving[rng.IntN(len(moving))]
				played = append(played, "completed "+d.String())
				step(bidask.Event{Kind: bidask.TransferDone, Deal: d})
				open = slices.DeleteFunc(open, func(o bidask.Deal) bool { return o == d })
				s.completed(d)
			}
			if !slices.Equal(got, s.sent) {
				t.Fatalf("input %d, %d slots: sent %v, by the paper %v\nafter %v", i, s.slots, got, s.sent, played)
			}
		}
		for _, line := range s.sent {
			busy += strings.Count(line, "busy")
			promised += strings.Count(line, "ready")
		}
	}
	t.Logf("%d busy, %d promised slots", busy, promised)
	if busy < inputs || promised < inputs {
		t.Error("the inputs are too easy")
	}
}
