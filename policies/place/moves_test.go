package place

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// movingPeers returns the peers of "a" with "b" in its stage, "short" in a shorter one and "long" in a longer one. All
// have reported that they are idle.
func movingPeers() *Peers {
	e := testEngine
	e.Skew, e.Cost.D2, e.KV = 0.5, 2e-6, 24_000 // moves pay
	b := NewPeers(PeersConfig{Self: "a", Engine: &e, Seed: 1})
	plan := policies.Plan{Model: "m", Epoch: 1, Stages: []policies.Stage{
		{High: 1000, Replicas: []policies.ReplicaID{"short"}},
		{Low: 1000, High: 8000, Replicas: []policies.ReplicaID{"a", "b"}},
		{Low: 8000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"long"}},
	}}
	var replicas []policies.Replica
	for _, id := range []policies.ReplicaID{"a", "b", "short", "long"} {
		replicas = append(replicas, policies.Replica{ID: id, Model: "m", Peer: string(id)})
	}
	b.SetView(plan, replicas)
	for _, r := range replicas[1:] {
		b.SetPeerLoad(0, r.ID, PeerLoad{})
		b.SetPeerState(0, r.ID, &State{})
	}
	return b
}

// runningResidents returns n requests that have generated a token of 200.
func runningResidents(b *Peers, n int, input policies.Tokens) (residents []Resident, movable []int) {
	for range 50 {
		b.ObserveEnd(input, 200)
	}
	for i := range n {
		residents, movable = append(residents, Resident{Input: input, Output: 1}), append(movable, i)
	}
	b.SetOwnState(0, &State{}, nil)
	return residents, movable
}

func TestFindMove(t *testing.T) {
	query := func(b *Peers) MoveQuery {
		residents, movable := runningResidents(b, 40, 4000)
		return MoveQuery{Residents: residents, Movable: movable}
	}
	b := movingPeers()
	q := query(b)
	m, ok := b.FindMove(0, q)
	if !ok || m.To != "b" && m.To != "long" || m.Gain <= 0 {
		t.Fatalf("of 40 requests beside idle replicas moves %+v, %v", m, ok)
	}
	// The peer is expected to have it.
	if held := b.peers[m.To].view.state.waiting; len(held) != 1 {
		t.Errorf("the buyer is expected to have %d requests", len(held))
	}
	for name, change := range map[string]func(*Peers, *MoveQuery){
		"one that is alone":       func(_ *Peers, q *MoveQuery) { q.Residents, q.Movable = q.Residents[:1], q.Movable[:1] },
		"with none that may move": func(_ *Peers, q *MoveQuery) { q.Movable = nil },
		"which takes longer than it has": func(_ *Peers, q *MoveQuery) {
			q.Takes = func(policies.ReplicaID, policies.Tokens) policies.Micros { return 60 * policies.Second }
		},
		"which no peer can run": func(_ *Peers, q *MoveQuery) { q.CanRunOn = func(int, policies.ReplicaID) bool { return false } },
		"of several sequences": func(_ *Peers, q *MoveQuery) {
			for i := range q.Residents {
				q.Residents[i].Sequences = 2
			}
		},
		"all but one of which leave": func(_ *Peers, q *MoveQuery) {
			for i := range q.Residents[1:] {
				q.Residents[i+1].Leaving = true
			}
		},
		"where peers drain": func(b *Peers, _ *MoveQuery) {
			b.SetPeerLoad(0, "b", PeerLoad{Draining: true})
			b.SetPeerLoad(0, "long", PeerLoad{Draining: true})
		},
		"where the loads of peers are old": func(b *Peers, _ *MoveQuery) {
			for _, e := range b.peers {
				e.loadedAt = -10 * policies.Second
			}
		},
		"where peers are as busy": func(b *Peers, q *MoveQuery) {
			var s State
			s.Describe(&b.outputs, q.Residents)
			b.SetPeerState(0, "b", &s)
			b.SetPeerState(0, "long", &s)
		},
	} {
		b := movingPeers()
		q := query(b)
		change(b, &q)
		if m, ok := b.FindMove(0, q); ok {
			t.Errorf("a request moves, %s: %+v", name, m)
		}
	}
	// Only the shorter stage is left.
	b = movingPeers()
	q = query(b)
	b.MarkGone("b")
	b.MarkGone("long")
	if m, ok := b.FindMove(0, q); ok {
		t.Errorf("a request of 4,001 tokens moves to the stage up to 1,000: %+v", m)
	}
}

// TestFindMoveOracle compares the gain with what whole models of both replicas say, the one that saves most of all
// pairs of a request and a peer.
func TestFindMoveOracle(t *testing.T) {
	moved := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		b := movingPeers()
		b.cfg.Reprompt = seed%2 == 1
		n := 1 + rng.IntN(maxMovers)
		residents, movable := runningResidents(b, n, 2000)
		for i := range residents {
			residents[i].Input = 1500 + policies.Tokens(rng.IntN(6000))
			residents[i].Output = policies.Tokens(1 + rng.IntN(150))
		}
		var other State
		for range rng.IntN(20) {
			other.Running = append(other.Running, Running{Count: 1, Length: 3000, Longest: 3000, Remaining: policies.Tokens(1 + rng.IntN(300)), Weight: 0.01})
		}
		b.SetPeerState(0, "b", &other)
		e := *b.cfg.Engine
		cost := func(running []Running, waiting ...Waiting) float64 { return modelOf(&e, running, waiting).Finish() }
		// What delays cost, by the time of an iteration of all these requests.
		congestion := func(running []Running, waiting policies.Tokens, more policies.Tokens) float64 {
			n, sum, longest := 1.0, float64(more), float64(more)
			for _, r := range running {
				n, sum, longest = n+1, sum+float64(r.Length), max(longest, float64(r.Length))
			}
			if waiting > 0 {
				n, sum, longest = n+1, sum+float64(waiting), max(longest, float64(waiting))
			}
			attended := sum + (e.Skew+e.Cost.Kappa/n)*(n*longest-sum)
			return math.Sqrt(100 * (e.Cost.D0 + e.Cost.D1*n + e.Cost.D4*attended))
		}
		// Here, half of the tokens that run are shared, and a prompt waits for memory.
		residents = append(residents, Resident{Input: 5000})
		b.SetOwnState(0, &State{Used: tokensOf(residents) / 2}, nil)
		queued := residents[n].describeWaiting(&b.outputs)
		costHere := func(running []Running) float64 {
			m, held := modelOf(&e, running, []Waiting{queued}), policies.Tokens(0)
			for _, r := range running {
				held += r.Length
			}
			m.SetUsed(held / 2)
			return m.Finish()
		}
		var own State
		own.Describe(&b.outputs, residents)
		best, from := minGain*e.Cost.D0, -1
		for i, r := range own.Running {
			rest := append(append([]Running{}, own.Running[:i]...), own.Running[i+1:]...)
			saved := (costHere(own.Running) - costHere(rest)) * congestion(rest, 5000, r.Length)
			for _, there := range [][]Running{other.Running, nil} {
				w := Waiting{Length: r.Length, Cached: r.Length - 1, Output: r.Remaining, Weight: r.Weight}
				computed := w
				computed.Cached, computed.FirstWeight = 0, FirstTokenWeight
				price := math.Max(cost(there, w), cost(there, computed)) - cost(there)
				if b.cfg.Reprompt {
					w.Cached = 0
					price = cost(there, w) - cost(there)
				}
				price *= congestion(there, 0, r.Length)
				if gain := saved - price; gain > best && gain > minGainShare*saved {
					best, from = gain, i
				}
			}
		}
		m, ok := b.FindMove(0, MoveQuery{Residents: residents, Movable: movable})
		got := "nothing moves"
		if ok {
			moved++
			got = fmt.Sprint(m.Resident)
		}
		want := "nothing moves"
		if from >= 0 {
			want = fmt.Sprint(from)
		}
		if got != want || ok && math.Abs(float64(m.Gain)-best*1e9) > 10 {
			t.Errorf("seed %d: %s, which saves %d; want %s, %.0f", seed, got, m.Gain, want, best*1e9)
		}
	}
	if moved < 20 || moved > 180 {
		t.Errorf("something moves in %d of 200 cases", moved)
	}
}

// tokensOf returns how many tokens the residents have that run.
func tokensOf(residents []Resident) (n policies.Tokens) {
	for i := range residents {
		if r := &residents[i]; r.runs() {
			n += r.Input + r.Output
		}
	}
	return n
}

func TestFindMoveAllocatesNothing(t *testing.T) {
	b := movingPeers()
	residents, movable := runningResidents(b, 64, 4000)
	now := policies.Micros(0)
	find := func() {
		now += 1000
		b.SetPeerState(now, "b", &State{At: now})
		b.SetPeerState(now, "long", &State{At: now})
		b.FindMove(now, MoveQuery{Residents: residents, Movable: movable})
	}
	for range 100 {
		find()
	}
	if n := testing.AllocsPerRun(100, find); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkFindMove searches among 64 running requests and two idle peers.
func BenchmarkFindMove(b *testing.B) {
	p := movingPeers()
	residents, movable := runningResidents(p, 64, 4000)
	b.ReportAllocs()
	for b.Loop() {
		p.FindMove(0, MoveQuery{Residents: residents, Movable: movable})
		p.SetPeerState(0, "b", &State{})
		p.SetPeerState(0, "long", &State{})
	}
}
