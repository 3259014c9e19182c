package place_test

import (
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

func TestCheapest(t *testing.T) {
	short := func(id policies.ReplicaID, price int64) policies.Candidate {
		return policies.Candidate{ID: id, High: 1000, Price: price}
	}
	long := func(id policies.ReplicaID, price int64) policies.Candidate {
		return policies.Candidate{ID: id, Low: 1000, High: policies.Unbounded, Price: price}
	}
	drains := func(c policies.Candidate) policies.Candidate { c.Draining = true; return c }
	loaded := func(c policies.Candidate, load policies.Tokens) policies.Candidate { c.Load = load; return c }
	pinned := policies.Request{Input: 2000, Features: policies.HiddenTokens}
	for name, c := range map[string]struct {
		arrival policies.Arrival
		want    policies.ReplicaID
	}{
		"a peer is cheaper":                       {policies.Arrival{Own: short("a", 9), Peers: []policies.Candidate{short("b", 8), short("c", 7)}}, "c"},
		"no peer is cheaper":                      {policies.Arrival{Own: short("a", 7), Peers: []policies.Candidate{short("b", 7), short("c", 9)}}, ""},
		"equal peers":                             {policies.Arrival{Own: short("a", 9), Peers: []policies.Candidate{loaded(short("b", 7), 50), loaded(short("c", 7), 40)}}, "c"},
		"a longer stage is cheaper":               {policies.Arrival{Own: short("a", 9), Peers: []policies.Candidate{long("f", 8)}}, "f"},
		"a shorter one is":                        {policies.Arrival{Request: prompt(2000), Own: long("f", 9), Peers: []policies.Candidate{short("b", 8)}}, "b"},
		"which a pinned one is not placed in":     {policies.Arrival{Request: pinned, Own: long("f", 9), Peers: []policies.Candidate{short("b", 8)}}, ""},
		"nor kept in":                             {policies.Arrival{Request: pinned, Own: short("a", 1), Peers: []policies.Candidate{long("f", 8)}}, "f"},
		"unless its length is an estimate":        {policies.Arrival{Request: policies.Request{Input: 2000, Estimated: true, Features: policies.HiddenTokens}, Own: short("a", 1), Peers: []policies.Candidate{long("f", 8)}}, ""},
		"the own replica drains":                  {policies.Arrival{Own: drains(short("a", 1)), Peers: []policies.Candidate{short("b", 8)}}, "b"},
		"a peer drains":                           {policies.Arrival{Own: short("a", 9), Peers: []policies.Candidate{drains(short("b", 8))}}, ""},
		"nothing else is left":                    {policies.Arrival{Own: drains(short("a", 9)), Peers: []policies.Candidate{drains(short("b", 8))}}, ""},
		"it was forwarded":                        {policies.Arrival{Hops: 1, Own: short("a", 9), Peers: []policies.Candidate{short("b", 8)}}, ""},
		"the own replica is no peer of its own":   {policies.Arrival{Own: short("a", 9), Peers: []policies.Candidate{short("a", 8)}}, ""},
		"the cheapest is far above the mean load": {policies.Arrival{Own: short("a", 9), Peers: []policies.Candidate{loaded(short("b", 1), 90_000), short("c", 8), short("d", 9)}}, "c"},
		"the own replica is far above it":         {policies.Arrival{Own: loaded(short("a", 1), 90_000), Peers: []policies.Candidate{short("b", 7), short("c", 8), short("d", 9)}}, "b"},
		"another stage's load does not count":     {policies.Arrival{Own: short("a", 9), Peers: []policies.Candidate{loaded(long("f", 1), 90_000), short("c", 8)}}, "f"},
	} {
		if got := (place.Cheapest{}).Place(c.arrival); got != c.want {
			t.Errorf("%s: placed at %q, want %q", name, got, c.want)
		}
	}
}

func pricedEngine() *place.Engine {
	return &place.Engine{Cost: policies.Cost{D0: 8e-3, D1: 5e-5, D2: 4e-5, D3: 1e-10, D4: 6e-8}, Batch: 64, Chunk: 8192, KV: 200_000}
}

// pricedPeers returns what replica a knows of b and c, all idle.
func pricedPeers(copySeconds float64) *place.Peers {
	b := place.NewPeers(place.PeersConfig{Self: "a", Placer: place.Cheapest{}, Engine: pricedEngine(), CopySeconds: copySeconds})
	b.SetView(policies.Plan{Model: "m", Stages: []policies.Stage{{High: policies.Unbounded, Replicas: []policies.ReplicaID{"a", "b", "c"}}}}, peers("a", "b", "c"))
	b.SetPeerLoad(0, "b", place.PeerLoad{})
	b.SetPeerLoad(0, "c", place.PeerLoad{})
	return b
}

// busy is a state that makes a replica dear.
func busy() *place.State {
	s := &place.State{}
	for range 20 {
		s.Running = append(s.Running, place.Running{Count: 1, Length: 4000, Longest: 4000, Remaining: 300, Weight: 1.0 / 300})
	}
	return s
}

// TestPricesFollowWhatIsKnown checks that own placements, arrivals at peers and reports change where requests are
// placed.
func TestPricesFollowWhatIsKnown(t *testing.T) {
	b := pricedPeers(0)
	want := func(what string, now policies.Micros, id policies.ReplicaID) {
		t.Helper()
		if got := b.Place(now, prompt(3000), nil).Replica; got != id {
			t.Errorf("%s: placed at %q, want %q", what, got, id)
		}
	}
	want("all are idle", 0, "")
	want("the own replica has one", 0, "b")
	want("b has one, too", 0, "c")
	want("all have one", 0, "")
	b.SetOwnState(1, busy(), nil)
	b.SetPeerState(1, "b", busy())
	b.SetPeerState(1, "c", &place.State{})
	want("two are busy", 1, "c")
	b.SetPeerState(2, "c", &place.State{})
	b.AddArrivals(2, "c", []place.Waiting{place.Waiting{Length: 30_000}.Weigh(100)})
	b.SetPeerState(2, "b", &place.State{})
	want("c has accepted a long one", 2, "b")
	b.AddArrivals(2, "x", []place.Waiting{{Length: 1}}) // which is not known
	b.SetOwnState(3, &place.State{}, nil)
	b.AddArrivals(3, "a", []place.Waiting{place.Waiting{Length: 50_000}.Weigh(100)})
	b.SetPeerState(3, "b", busy())
	b.SetPeerState(3, "c", &place.State{})
	want("a peer has sent the own replica a long one", 3, "c")
}

// TestPricesOfManyPeers checks that few of many peers get a price, others each time.
func TestPricesOfManyPeers(t *testing.T) {
	var ids []policies.ReplicaID
	for i := range 40 {
		ids = append(ids, policies.ReplicaID(fmt.Sprintf("p%02d", i)))
	}
	seen := make(map[policies.ReplicaID]bool)
	b := place.NewPeers(place.PeersConfig{Self: ids[0], Engine: pricedEngine(), Placer: placerFunc(func(a policies.Arrival) policies.ReplicaID {
		if len(a.Peers) != 16 {
			t.Errorf("%d peers have a price", len(a.Peers))
		}
		for _, c := range a.Peers {
			seen[c.ID] = true
		}
		return ""
	})})
	b.SetView(policies.Plan{Model: "m", Stages: []policies.Stage{{High: policies.Unbounded, Replicas: ids}}}, peers(ids...))
	for _, id := range ids[1:] {
		b.SetPeerLoad(0, id, place.PeerLoad{})
	}
	for range 200 {
		b.Place(0, prompt(3000), nil)
	}
	if len(seen) != len(ids)-1 {
		t.Errorf("%d of %d peers were considered", len(seen), len(ids)-1)
	}
	if stage, _, _ := b.SampleNeighbours(); len(stage) != len(ids)-1 {
		t.Errorf("%d of %d peers of the stage get the load", len(stage), len(ids)-1)
	}
}

// TestPricesCountCopies checks that a replica that can copy a prefix is priced by it: else the replica that holds the
// prefix gets the request although it is busier.
func TestPricesCountCopies(t *testing.T) {
	place1 := func(copySeconds float64) policies.ReplicaID {
		b := pricedPeers(copySeconds)
		b.SetOwnState(0, busy(), nil)
		b.SetPeerState(0, "c", busy())
		r := prompt(20_000)
		r.Cached = 19_000
		return b.Place(0, r, nil).Replica
	}
	if got := place1(0); got != "" {
		t.Errorf("without copies the holder is passed over for %q", got)
	}
	if got := place1(1e-7); got != "b" {
		t.Errorf("with copies the idle peer is passed over for %q", got)
	}
}

func TestStateIsCompact(t *testing.T) {
	s, tokens, weight, count := &place.State{}, policies.Tokens(0), 0.0, 0
	for i := range 500 {
		s.Running = append(s.Running, place.Running{Count: 2, Length: policies.Tokens(i), Longest: policies.Tokens(i), Remaining: policies.Tokens(i * 7 % 500), Weight: 0.5})
		s.Waiting = append(s.Waiting, place.Waiting{Length: 10}.Weigh(100))
	}
	s.Compact()
	if len(s.Running) > place.MaxGroups || len(s.Waiting) > place.MaxWaiting {
		t.Errorf("%d groups, %d prompts", len(s.Running), len(s.Waiting))
	}
	for i, g := range s.Running {
		tokens, weight, count = tokens+g.Length, weight+g.Weight, count+g.Count
		if i > 0 && g.Remaining < s.Running[i-1].Remaining {
			t.Errorf("group %d ends before the one before it", i)
		}
	}
	if tokens != 500*499/2 || weight != 250 || count != 1000 {
		t.Errorf("%d tokens, weight %v, %d sequences", tokens, weight, count)
	}
	tokens = 0
	for _, w := range s.Waiting {
		tokens += w.Length
	}
	if tokens != 5000 {
		t.Errorf("%d tokens wait", tokens)
	}
}

// TestUnknownPeersAreNoBargain checks that a request outside the own stage's lengths stays where its price is known: a
// peer that has not reported looks idle.
func TestUnknownPeersAreNoBargain(t *testing.T) {
	b := pricedPeers(0)
	ids := []policies.ReplicaID{"a", "b", "c", "silent"}
	var all []policies.Replica
	for _, id := range ids {
		all = append(all, policies.Replica{ID: id, Peer: string(id) + ":1"})
	}
	b.SetView(policies.Plan{Stages: []policies.Stage{
		{High: 10_000, Replicas: ids[:2]}, {Low: 10_000, High: policies.Unbounded, Replicas: ids[2:]}}}, all)
	b.SetPeerLoad(0, "b", place.PeerLoad{})
	b.SetPeerLoad(0, "c", place.PeerLoad{})
	b.SetPeerState(0, "b", busy())
	b.SetPeerState(0, "c", busy())
	b.SetOwnState(0, &place.State{Running: busy().Running[:1]}, nil)
	if got := b.Place(0, prompt(20_000), nil).Replica; got != "" {
		t.Errorf("placed at %q, not here, where it is cheapest", got)
	}
	b.SetOwnLoad(place.PeerLoad{Draining: true})
	b.SetPeerLoad(0, "b", place.PeerLoad{Draining: true})
	b.SetPeerLoad(0, "c", place.PeerLoad{Draining: true})
	if got := b.Place(0, prompt(20_000), nil).Replica; got != "silent" {
		t.Errorf("placed at %q, although all others drain", got)
	}
}

// TestListsWeighAlike checks that a waiting request of several sequences weighs as much as they do one by one, and that
// each sequence of a prompt is as long as the prompt and its own output.
func TestListsWeighAlike(t *testing.T) {
	var o place.Outputs
	var one, list place.State
	one.Describe(&o, []place.Resident{{Input: 100}})
	list.Describe(&o, []place.Resident{{Input: 400, Cached: 500, Prompts: 4, Sequences: 4}})
	if got, want := list.Waiting[0].Weight, 4*one.Waiting[0].Weight; got != want {
		t.Errorf("weight %v, want %v", got, want)
	}
	if w := list.Waiting[0]; w.Cached > w.Length {
		t.Errorf("%d of %d tokens are cached", w.Cached, w.Length)
	}
	list.Describe(&o, []place.Resident{{Input: 800, Output: 40, Sequences: 4}})
	if g := list.Running[0]; g.Count != 4 || g.Length != 4*810 || g.Longest != 810 {
		t.Errorf("four answers to a prompt: %+v", g)
	}
}
