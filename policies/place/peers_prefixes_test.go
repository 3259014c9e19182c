package place_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// holding holds so many tokens of every prompt.
type holding policies.Tokens

func (h holding) MatchSteps(steps []prefix.Step) policies.Tokens {
	return min(policies.Tokens(h), steps[len(steps)-1].Tokens)
}

// stepsOf returns the steps of a prompt of n tokens.
func stepsOf(n int) []prefix.Step { return prefix.AppendSteps(nil, 0, make([]uint32, n)) }

// lastArrival is a Placer that keeps everything here, and what it was asked last.
type lastArrival struct {
	policies.Arrival
	to policies.ReplicaID
}

func (p *lastArrival) Place(a policies.Arrival) policies.ReplicaID {
	p.Arrival = a
	p.Peers = slices.Clone(a.Peers) // only valid during the call
	return p.to
}

// held returns the prefixes of the candidates by their names.
func (p *lastArrival) held() map[policies.ReplicaID]policies.Tokens {
	out := map[policies.ReplicaID]policies.Tokens{}
	for _, c := range p.Peers {
		out[c.ID] = c.Prefix
	}
	return out
}

// largeFleet returns a view of 2n replicas in two stages, with one candidate in a sample. All have a load.
func largeFleet(n int, p policies.Placer) *place.Peers {
	b := place.NewPeers(place.PeersConfig{Self: "a0", Placer: p, SampleSize: 1})
	var all []policies.ReplicaID
	for i := range 2 * n {
		all = append(all, policies.ReplicaID(fmt.Sprintf("%c%d", 'a'+i/n, i%n)))
	}
	b.SetView(policies.Plan{Model: "m", Stages: []policies.Stage{{High: 10_000, Replicas: all[:n]}, {Low: 10_000, High: policies.Unbounded, Replicas: all[n:]}}}, peers(all...))
	for _, id := range all {
		b.SetPeerLoad(0, id, place.PeerLoad{})
	}
	return b
}

// TestPlaceOffersHolders checks that the Placer sees the peers that hold most of a prompt, of any stage, whether
// or not they are in the sample, and what the candidates hold.
func TestPlaceOffersHolders(t *testing.T) {
	p := &lastArrival{}
	b := largeFleet(50, p)
	r := policies.Request{Input: 4096, Cached: 100}
	b.Place(0, r, stepsOf(4096))
	if len(p.Peers) != 2 || p.Own.Prefix != 100 {
		t.Errorf("without summaries: %v, own %v", p.held(), p.Own.Prefix)
	}
	b.SetPeerPrefixes("a7", holding(2048))
	b.SetPeerPrefixes("b9", holding(1024))
	b.SetPeerPrefixes("b3", holding(0))
	b.SetPeerPrefixes("unknown", holding(4096))
	b.Place(0, r, stepsOf(4096))
	if got := p.held(); got["a7"] != 2048 || got["b9"] != 1024 || len(got) > 4 {
		t.Errorf("the candidates hold %v", got)
	}
	for _, c := range p.Peers {
		if want := policies.Tokens(0); c.ID[0] == 'b' {
			if want = 10_000; c.Low != want || c.High != policies.Unbounded {
				t.Errorf("%+v", c)
			}
		} else if c.Low != want || c.High != 10_000 {
			t.Errorf("%+v", c)
		}
	}
	if n := b.Holders(); n != 3 {
		t.Errorf("%d peers have said what they hold", n)
	}
	if b.Place(0, r, nil); len(p.Peers) != 2 {
		t.Errorf("for an unknown prompt: %v", p.held())
	}

	// Many hold something: the best four are offered.
	for i := range 50 {
		b.SetPeerPrefixes(policies.ReplicaID(fmt.Sprint("a", i)), holding(512+i))
		b.SetPeerPrefixes(policies.ReplicaID(fmt.Sprint("b", i)), nil)
	}
	b.SetPeerLoad(0, "a49", place.PeerLoad{Draining: true})
	b.MarkGone("a48")
	for range 20 {
		b.Place(0, r, stepsOf(4096))
		sampled := max(p.Peers[0].Prefix, p.Peers[1].Prefix)
		for i := 47; i > 43 && 512+policies.Tokens(i) > sampled; i-- {
			if id := policies.ReplicaID(fmt.Sprint("a", i)); p.held()[id] != 512+policies.Tokens(i) {
				t.Fatalf("%s is missing in %v", id, p.held())
			}
		}
		if len(p.Peers) > 6 || p.held()["a49"] != 0 || p.held()["a48"] != 0 {
			t.Fatalf("candidates %v", p.held())
		}
	}
	// A peer that is back has another engine, or another cache.
	b.MarkBack("a48")
	b.SetPeerLoad(0, "a48", place.PeerLoad{})
	if b.Place(0, r, stepsOf(4096)); p.held()["a48"] != 0 {
		t.Errorf("a replica that was gone holds %d", p.held()["a48"])
	}
	if n := b.Holders(); n != 48 {
		t.Errorf("%d peers hold something, want 48", n)
	}
	b.SetView(policies.OneStagePlan("m", []policies.ReplicaID{"a0", "a1"}), peers("a0", "a1", "a2"))
	if n := b.Holders(); n != 2 {
		t.Errorf("%d of two peers hold something", n)
	}
}

// TestPlaceNamesWhatMayBeCopied checks that a peer learns how much of the prompt another replica holds, this one
// included, if that is more than its own.
func TestPlaceNamesWhatMayBeCopied(t *testing.T) {
	p := &lastArrival{to: "a1"}
	b := largeFleet(4, p)
	b.SetPeerPrefixes("a1", holding(1024))
	b.SetPeerPrefixes("a2", holding(2048))
	for _, x := range []struct {
		to         policies.ReplicaID
		here, held policies.Tokens
	}{{"a1", 100, 2048}, {"a1", 3000, 3000}, {"a2", 100, 0}, {"a3", 0, 2048}} {
		p.to = x.to
		if got := b.Place(0, policies.Request{Input: 4096, Cached: x.here}, stepsOf(4096)); got.Replica != x.to || got.Held != x.held {
			t.Errorf("%+v, want %+v", got, x)
		}
	}
	if got := b.Place(0, policies.Request{Input: 4096}, nil); got.Held != 0 {
		t.Errorf("an unknown prompt: %+v", got)
	}
}

// TestPlaceCountsUncachedTokens checks that a placed request adds to a queue what is to be computed for it.
func TestPlaceCountsUncachedTokens(t *testing.T) {
	p := &lastArrival{to: "a1"}
	b := largeFleet(2, p)
	b.SetPeerPrefixes("a1", holding(3072))
	r := policies.Request{Input: 4000, Cached: 3000}
	b.Place(0, r, stepsOf(4000))
	b.Place(0, r, stepsOf(4000))
	for _, c := range p.Peers {
		if c.ID == "a1" && (c.Waiting != 928 || c.Load != 4000) {
			t.Errorf("a peer that holds 3,072 tokens of 4,000 has %d waiting, %d in all", c.Waiting, c.Load)
		}
	}
	p.to = ""
	b.Place(0, r, stepsOf(4000))
	b.Place(0, r, stepsOf(4000))
	if p.Own.Waiting != 1000 || p.Own.Load != 4000 {
		t.Errorf("here are %d waiting, %d in all", p.Own.Waiting, p.Own.Load)
	}
}

// TestPlaceExaminesFew checks the bound on the summaries that one placement reads.
func TestPlaceExaminesFew(t *testing.T) {
	p := &lastArrival{}
	b := largeFleet(1000, p)
	read := 0
	for i := range 1000 {
		b.SetPeerPrefixes(policies.ReplicaID(fmt.Sprint("a", i)), counting{&read})
		b.SetPeerPrefixes(policies.ReplicaID(fmt.Sprint("b", i)), counting{&read})
	}
	b.Place(0, policies.Request{Input: 600}, stepsOf(600))
	if read < 200 || read > 300 {
		t.Errorf("%d summaries are read for one placement", read)
	}
	steps := stepsOf(600)
	if n := testing.AllocsPerRun(100, func() { b.Place(0, policies.Request{Input: 600}, steps) }); n > 2 {
		t.Errorf("%v allocations", n) // of the test's Placer, which clones
	}
}

type counting struct{ n *int }

func (c counting) MatchSteps([]prefix.Step) policies.Tokens { *c.n++; return 0 }

// TestPlaceSaysWhatRuns checks that the Placer learns how many requests run at each candidate.
func TestPlaceSaysWhatRuns(t *testing.T) {
	p := &lastArrival{}
	b := largeFleet(2, p)
	b.SetOwnLoad(place.PeerLoad{Running: 3})
	b.SetPeerLoad(0, "a1", place.PeerLoad{Running: 5})
	b.Place(0, policies.Request{Input: 10}, nil)
	if p.Own.Running != 3 || len(p.Peers) == 0 || p.Peers[0].ID != "a1" || p.Peers[0].Running != 5 {
		t.Errorf("own %+v, peers %+v", p.Own, p.Peers)
	}
}
