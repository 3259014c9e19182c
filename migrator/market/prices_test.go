package market

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// sentTo collects what a market sends.
type sentTo struct {
	arrivals map[policies.ReplicaID][]*api.Arrivals
	summary  *api.Summary
}

func (s *sentTo) Send(to policies.ReplicaID, e *api.Envelope) {
	if a := e.GetArrivals(); a != nil {
		s.arrivals[to] = append(s.arrivals[to], a)
	}
	if x := e.GetSummary(); x != nil {
		s.summary = x
	}
}

// pricedMarket returns the market of replica a in a stage of a, b and c, with prices.
func pricedMarket(network *sentTo, legs func() []frontend.LocalLeg) *Market {
	network.arrivals = map[policies.ReplicaID][]*api.Arrivals{}
	c := good()
	c.Network, c.Residents, c.Placer = network, legs, place.Cheapest{}
	c.Engine = &place.Engine{Cost: policies.Cost{D0: 8e-3, D2: 4e-5, D4: 6e-8}, Batch: 64, Chunk: 8192, KV: 100_000}
	m := testkit.Must(New(c))
	var replicas []policies.Replica
	for _, id := range []policies.ReplicaID{"a", "b", "c"} {
		replicas = append(replicas, policies.Replica{ID: id, Peer: string(id) + ":1"})
	}
	m.SetView(View{Plan: policies.Plan{Stages: []policies.Stage{{High: policies.Unbounded, Replicas: []policies.ReplicaID{"a", "b", "c"}}}}, Peers: replicas})
	return m
}

// TestPeersLearnOfArrivals checks that an accepted request is sent to the peers at once, but not to the front end that it
// came from, and that a summary has what the replica has. A request whose engine was lost waits, although it has
// generated tokens elsewhere.
func TestPeersLearnOfArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		running := frontend.LocalLeg{Name: "x", Request: policies.Request{Input: 100, Output: 20}, Since: now, Last: now}
		waiting := frontend.LocalLeg{Name: "y", FrontEnd: "b", Request: policies.Request{Input: 3000, Cached: 500}, Since: now.Add(time.Millisecond)}
		rescued := frontend.LocalLeg{Name: "z", Request: policies.Request{Input: 7000, Output: 50}, Since: now.Add(2 * time.Millisecond)}
		var sent sentTo
		m := pricedMarket(&sent, func() []frontend.LocalLeg { return []frontend.LocalLeg{rescued, waiting, running} })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		defer func() {
			stop()
			<-done
		}()
		synctest.Wait()
		m.LegBegan(&waiting)
		m.LegBegan(&rescued)
		time.Sleep(arrivalsInterval + time.Millisecond)
		synctest.Wait()
		b, c := sent.arrivals["b"], sent.arrivals["c"]
		if len(b) != 1 || len(b[0].Requests) != 1 || len(c) != 1 || len(c[0].Requests) != 2 {
			t.Fatalf("an arrival from b and one from here are sent to %v", sent.arrivals)
		}
		if w := c[0].Requests[0]; w.Length != 3000 || w.Cached != 500 || w.Output != int64(place.DefaultOutput) {
			t.Errorf("%+v", w)
		}
		if w := b[0].Requests[0]; w.Length != 7050 || w.FirstWeight != 0 {
			t.Errorf("a request whose engine was lost, and which is computed again: %+v", w)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		s := sent.summary
		if len(s.GetGroups()) != 1 || s.Groups[0].Length != 120 || len(s.GetPrompts()) != 2 || s.Prompts[0].Length != 3000 || s.Prompts[1].Length != 7050 {
			t.Errorf("the summary says %v", s)
		}
		const typical = 8e-3 + 6e-8*16*1024
		if state, ok := decodeState(m.now(), s); !ok || len(state.Running) != 1 || len(state.Waiting) != 2 || math.Abs(state.Iteration-typical) > 1e-6 {
			t.Errorf("a peer reads %+v, %v", state, ok)
		}
	})
}

// TestInvalidStates checks that a peer's invalid claims change nothing.
func TestInvalidStates(t *testing.T) {
	group := func(change func(*api.RunningGroup)) *api.Summary {
		g := &api.RunningGroup{Count: 1, Length: 10, Longest: 10, Remaining: 10, Weight: 1}
		change(g)
		return &api.Summary{Groups: []*api.RunningGroup{g}}
	}
	prompt := func(change func(*api.WaitingRequest)) *api.Summary {
		w := &api.WaitingRequest{Length: 10, Cached: 5, Output: 10, Weight: 1, FirstWeight: 1}
		change(w)
		return &api.Summary{Prompts: []*api.WaitingRequest{w}}
	}
	if _, ok := decodeState(0, group(func(*api.RunningGroup) {})); !ok {
		t.Error("a valid group is refused")
	}
	if _, ok := decodeState(0, prompt(func(*api.WaitingRequest) {})); !ok {
		t.Error("a valid prompt is refused")
	}
	for name, s := range map[string]*api.Summary{
		"no sequence":            group(func(g *api.RunningGroup) { g.Count = 0 }),
		"negative length":        group(func(g *api.RunningGroup) { g.Length = -1 }),
		"longest beyond the sum": group(func(g *api.RunningGroup) { g.Longest = 11 }),
		"huge remainder":         group(func(g *api.RunningGroup) { g.Remaining = math.MaxInt64 }),
		"weight not a number":    group(func(g *api.RunningGroup) { g.Weight = float32(math.NaN()) }),
		"infinite weight":        group(func(g *api.RunningGroup) { g.Weight = float32(math.Inf(1)) }),
		"cached beyond length":   prompt(func(w *api.WaitingRequest) { w.Cached = 11 }),
		"negative weight":        prompt(func(w *api.WaitingRequest) { w.FirstWeight = -1 }),
		"prompt of a book shelf": prompt(func(w *api.WaitingRequest) { w.Length = 1 << 30 }),
		"age of years":           prompt(func(w *api.WaitingRequest) { w.AgeMicros = math.MinInt64 }),
		"negative age":           {AgeMicros: -1},
		"negative use":           {Used: -1},
		"too many groups":        {Groups: make([]*api.RunningGroup, place.MaxGroups+1)},
		"too many prompts":       {Prompts: make([]*api.WaitingRequest, place.MaxWaiting+1)},
	} {
		if _, ok := decodeState(0, s); ok {
			t.Errorf("%s: accepted", name)
		}
	}
	var sent sentTo
	m := pricedMarket(&sent, func() []frontend.LocalLeg { return nil })
	m.ReceiveArrivals("b", &api.Arrivals{Requests: []*api.WaitingRequest{{Length: -1}}})
	m.ReceiveArrivals("b", &api.Arrivals{Requests: make([]*api.WaitingRequest, maxArrivals+1)})
	if m.status.Ignored != 2 {
		t.Errorf("%d messages are counted as ignored", m.status.Ignored)
	}
}

// TestHangingEngineIsNotIdle checks that an engine without tokens is not taken to have ended its requests, and that
// peers accept the state of a replica where requests have waited for days.
func TestHangingEngineIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent sentTo
		m := pricedMarket(&sent, func() []frontend.LocalLeg { return nil })
		time.Sleep(time.Second)
		now := time.Now()
		running := frontend.LocalLeg{Name: "x", Request: policies.Request{Input: 1000, Output: 20}, Since: now, Last: now}
		waiting := frontend.LocalLeg{Name: "y", Request: policies.Request{Input: 3 << 20, Cached: 4 << 20}, Since: now}
		time.Sleep(48 * time.Hour)
		m.updateOwnState([]frontend.LocalLeg{running, waiting}, policies.Load{})
		var s api.Summary
		m.encodeState(&s)
		if state, ok := decodeState(m.now(), &s); !ok || len(state.Running) != 1 || len(state.Waiting) != 1 {
			t.Errorf("a peer reads %+v, %v from %v", state, ok, &s)
		}
		if s.AgeMicros > int64(policies.Second) {
			t.Errorf("the engine is taken to have worked for %d µs without a token", s.AgeMicros)
		}
	})
}

// TestPeerWithoutStateIsNotIdle checks that a peer whose summaries describe no requests does not attract all of them.
func TestPeerWithoutStateIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent sentTo
		m := pricedMarket(&sent, func() []frontend.LocalLeg { return nil })
		running := frontend.LocalLeg{Name: "x", Request: policies.Request{Input: 1000, Output: 20}, Last: time.Now()}
		m.updateOwnState([]frontend.LocalLeg{running}, policies.Load{})
		for _, s := range []*api.Summary{{Held: 60_000, Running: 20}, {Promised: 50_000, Cached: 10_000}} {
			m.ReceiveSummary("b", s)
			if at := m.Place(policies.Request{Input: 2000}, nil); at.Replica != "" {
				t.Errorf("placed at %q, which has reported %v", at.Replica, s)
			}
		}
	})
}

// TestReplicasChooseDifferentPeers checks that the replicas of a fleet choose at random independently of each other:
// their summaries reach most replicas of a large stage, and not the same few.
func TestReplicasChooseDifferentPeers(t *testing.T) {
	var view View
	stage := policies.Stage{High: policies.Unbounded}
	for i := range 200 {
		id := policies.ReplicaID(fmt.Sprint("r", i))
		stage.Replicas = append(stage.Replicas, id)
		view.Peers = append(view.Peers, policies.Replica{ID: id, Peer: string(id)})
	}
	view.Plan.Stages = []policies.Stage{stage}
	reached := make(map[policies.ReplicaID]bool)
	for _, id := range stage.Replicas[:50] {
		c := good()
		c.Self, c.Network = id, network(func(to policies.ReplicaID, _ *api.Envelope) { reached[to] = true })
		m := testkit.Must(New(c))
		m.SetView(view)
		m.sendSummaries()
	}
	if len(reached) < 150 {
		t.Errorf("50 replicas have sent summaries to %d of 200 replicas", len(reached))
	}
}
