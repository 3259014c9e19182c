package bidask_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// bids returns n random bids with many ties.
func bids(rng *rand.Rand, n int) []policies.Bid {
	out := make([]policies.Bid, n)
	for i := range out {
		out[i] = policies.Bid{From: policies.ReplicaID(rune('a' + i)), Load: policies.Tokens(rng.IntN(6)), Start: policies.Micros(rng.IntN(4)) * 5000}
	}
	return out
}

// TestPaperRule compares the rule with the paper's (section "Decentralized Load (Re)Balancing"), step by step: the
// sender drops the half of the receivers with the higher load, keeps the earliest starts, three unless it is set
// otherwise, and takes the first reply of these.
func TestPaperRule(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 5000 {
		in := bids(rng, 1+rng.IntN(12))
		keep := rng.IntN(6) - 1
		// Drop the more loaded half: of n bids, remove n/2, beginning with the highest
		// load; of equal loads, a later reply is removed before an earlier one.
		rest := slices.Clone(in)
		for range len(in) / 2 {
			worst := 0
			for i, b := range rest {
				if b.Load >= rest[worst].Load {
					worst = i
				}
			}
			rest = slices.Delete(rest, worst, worst+1)
		}
		// Of the rest, keep the earliest starts: a bid stays if fewer than `keep` bids
		// start before it.
		want := ""
		k := keep
		if k <= 0 {
			k = 3
		}
		for i, b := range rest {
			before := 0
			for j, o := range rest {
				if o.Start < b.Start || o.Start == b.Start && (o.Load < b.Load || o.Load == b.Load && j < i) {
					before++
				}
			}
			if before < k {
				want = string(b.From)
				break // the first reply
			}
		}
		clone := slices.Clone(in)
		got := bidask.Paper{Keep: keep}.Select(in)
		if got < 0 || string(in[got].From) != want {
			t.Fatalf("%+v, keep %d: took %d, want %s", in, keep, got, want)
		}
		if !slices.Equal(in, clone) {
			t.Fatal("the bids were changed")
		}
	}
}

// TestPaperRuleAllocatesNothing uses the largest usual number of bids.
func TestPaperRuleAllocatesNothing(t *testing.T) {
	list := bids(rand.New(rand.NewPCG(1, 1)), 64)
	if n := testing.AllocsPerRun(100, func() { bidask.Paper{}.Select(list) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLeastLoadRule(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 5000 {
		in := bids(rng, 1+rng.IntN(12))
		sorted := slices.Clone(in)
		sort.SliceStable(sorted, func(i, j int) bool {
			a, b := sorted[i], sorted[j]
			return a.Load < b.Load || a.Load == b.Load && a.Start < b.Start
		})
		if got := (bidask.LeastLoad{}).Select(in); in[got] != sorted[0] {
			t.Fatalf("%+v: took %d, want %s", in, got, sorted[0].From)
		}
	}
	for _, s := range []policies.Selector{bidask.LeastLoad{}, bidask.Paper{}} {
		if got := s.Select(nil); got != -1 {
			t.Errorf("%T takes %d of no bids", s, got)
		}
	}
}

func TestBacklog(t *testing.T) {
	for _, c := range []struct {
		quote    bidask.Backlog
		position policies.Occupancy
		load     policies.Tokens
		start    policies.Micros
	}{
		{bidask.Backlog{}, policies.Occupancy{}, 0, 0},
		{bidask.Backlog{}, policies.Occupancy{Held: 1, Promised: 2, Incoming: 400}, 403, 0}, // 4 ms
		{bidask.Backlog{}, policies.Occupancy{Incoming: 1400}, 1400, 10000},                 // 14 ms
		{bidask.Backlog{}, policies.Occupancy{Incoming: 1400, Throughput: 1400}, 1400, 1000000},
		{bidask.Backlog{Quantum: 1, Throughput: 1000}, policies.Occupancy{Incoming: 3}, 3, 3000},
		{bidask.Backlog{Quantum: -1, Throughput: -5}, policies.Occupancy{Incoming: 1400, Throughput: -3}, 1400, 10000}, // the defaults
		{bidask.Backlog{Throughput: 1000}, policies.Occupancy{Incoming: 1400, Throughput: -3}, 1400, 1400000},
		{bidask.Backlog{}, policies.Occupancy{Incoming: policies.Unbounded, Throughput: 1}, policies.Unbounded, 9223372036854000000},
	} {
		got, ok := c.quote.Quote(c.position, policies.Migration{})
		if !ok || got.Load != c.load || got.Start != c.start {
			t.Errorf("%+v at %+v: %+v", c.quote, c.position, got)
		}
	}
}

// TestSample checks that a sample contains different candidates, never the replica
// itself, and each candidate about equally often.
func TestSample(t *testing.T) {
	var names []policies.ReplicaID
	for i := range 20 {
		names = append(names, policies.ReplicaID(rune('a'+i)))
	}
	for _, self := range []policies.ReplicaID{"a", "t", "none"} {
		seen, first := map[policies.ReplicaID]int{}, map[policies.ReplicaID]int{}
		const rounds = 20000
		for seed := range uint64(rounds) {
			got := bidask.Sample(names, self, 8, seed)
			if len(got) != 8 {
				t.Fatalf("%d of 8", len(got))
			}
			first[got[0]]++
			for i, id := range got {
				seen[id]++
				if id == self || slices.Contains(got[:i], id) {
					t.Fatalf("sample %v of %s", got, self)
				}
			}
			if !slices.Equal(got, bidask.Sample(names, self, 8, seed)) {
				t.Fatal("equal seeds, different samples")
			}
		}
		others := 20
		if self != "none" {
			others--
		}
		for _, id := range names {
			mean := rounds * 8 / others
			if n := seen[id]; id != self && (n < mean*94/100 || n > mean*106/100) {
				t.Errorf("%s was sampled %d times, the mean is %d", id, n, mean)
			}
			mean = rounds / others
			if n := first[id]; id != self && (n < mean*85/100 || n > mean*115/100) {
				t.Errorf("%s was first %d times, the mean is %d", id, n, mean)
			}
		}
	}
	for d, want := range map[int]int{bidask.AskAll: 19, 20: 19, 30: 19, 19: 19, 18: 18, 1: 1} {
		if got := bidask.Sample(names, "c", d, 1); len(got) != want || slices.Contains(got, "c") {
			t.Errorf("%d: %v", d, got)
		}
	}
	if got := bidask.Sample(names[:1], "a", 8, 1); len(got) != 0 {
		t.Errorf("of oneself: %v", got)
	}
}

func TestConfig(t *testing.T) {
	for _, bad := range []string{
		"Self=", "Sample=-2", "MaxConcurrentSends=-1", "MaxConcurrentReceives=-1", "MaxSkips=-1", "MaxWins=-1",
		"BidTimeout=-1", "AnswerTimeout=-1", "RetryDelay=-1", "PromiseTimeout=-1", "Lease=-1", "TransferTimeout=-1",
	} {
		c := bidask.Rules{Self: "a"}
		testkit.NoError(t, testkit.SetFields(&c, []string{bad}))
		var v *policies.Violation
		if _, err := bidask.NewMachine(c); !errors.As(err, &v) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// broken is a selector that violates the contract.
type broken int

func (b broken) Select([]policies.Bid) int { return int(b) }

// TestBrokenSelector checks that a selector that returns an index outside the bids
// sells nothing.
func TestBrokenSelector(t *testing.T) {
	for _, costs := range [][]policies.Micros{nil, {1, 5}} {
		for _, at := range []int{-1, -7, 2, 99} {
			m := testkit.Must(bidask.NewMachine(bidask.Rules{Self: "a", Selector: broken(at)}))
			out := m.Step(bidask.Event{Kind: bidask.Offered, Migration: policies.Migration{Request: "q"}, Candidates: []policies.ReplicaID{"b", "c"}, Costs: costs}, nil)
			for _, from := range []policies.ReplicaID{"b", "c"} {
				out = m.Step(bidask.Event{Kind: bidask.MessageReceived, Message: bidask.Message{Kind: bidask.Bid, From: from, To: "a", Deal: bidask.Deal{Seller: "a"}}}, nil)
			}
			if len(out) != 1 || out[0].Kind != bidask.Return || out[0].Reason != bidask.ReturnNoBids || !m.Idle() {
				t.Errorf("%d with costs %v: %+v", at, costs, out)
			}
		}
	}
}

// TestNames checks that every value that is displayed has a name.
func TestNames(t *testing.T) {
	for k := bidask.Ask; k <= bidask.Drop; k++ {
		if k.String() == "unknown" || k <= bidask.MessageKind(bidask.Return) && bidask.ActionKind(k).String() == "unknown" ||
			k <= bidask.MessageKind(bidask.ReturnWithdrawn) && bidask.ReturnReason(k).String() == "unknown" {
			t.Errorf("message, action or reason %d has no name", k)
		}
	}
	if bidask.MessageKind(99).String()+bidask.MessageKind(99).String()+bidask.ReturnReason(0).String() != "unknownunknownunknown" {
		t.Error("values without a name")
	}
}

// answering returns a machine, and an ask that it answers.
func answering() (*bidask.Machine, bidask.Event) {
	m, _ := bidask.NewMachine(bidask.Rules{Self: "a"})
	m.Step(bidask.Event{Kind: bidask.OccupancyMeasured, Occupancy: policies.Occupancy{Capacity: 1000}}, nil)
	return m, bidask.Event{Kind: bidask.MessageReceived, Message: bidask.Message{Kind: bidask.Ask, From: "b", To: "a", Deal: bidask.Deal{Seller: "b"}, Migration: policies.Migration{Request: "q", Length: 10}}}
}

// TestAnswerAllocations checks that answering asks, which is most of a replica's work
// in the market, allocates nothing.
func TestAnswerAllocations(t *testing.T) {
	m, ask := answering()
	out := make([]bidask.Action, 0, 4)
	if n := testing.AllocsPerRun(100, func() { out = m.Step(ask, out[:0]) }); n != 0 {
		t.Errorf("an answer allocates %v times", n)
	}
	if len(out) != 1 || out[0].Message.Kind != bidask.Bid {
		t.Errorf("%+v", out)
	}
}
