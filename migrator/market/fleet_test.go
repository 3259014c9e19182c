package market

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// paper is the paper's market.
var paper = bidask.Rules{Sample: bidask.AskAll, Selector: bidask.Paper{}, MaxConcurrentSends: 3, MaxConcurrentReceives: 3}

// TestDrain drains a replica while transfers fail, reservations are rejected and messages are lost.
func TestDrain(t *testing.T) {
	for name, change := range map[string]func(*fleet){
		"calm":  nil,
		"rough": func(w *fleet) { w.fail, w.refuse, w.loss = 0.3, 0.2, 0.05 },
		"paper": func(w *fleet) { w.config = paper },
	} {
		t.Run(name, func(t *testing.T) {
			runFleet(t, 6, change, func(t *testing.T, w *fleet) {
				for i := range 60 {
					w.addRequest(w.ids[i%6], fmt.Sprintf("q%d", i), policies.Tokens(100+50*i), policies.NotPinned)
				}
				w.addRequest("r0", "fixed", 700, policies.PinReasonOf(policies.Structured))
				w.plan(w.stages([]policies.Tokens{2000}, 3, 3))
				w.run(func() {
					time.Sleep(time.Second)
					left := w.stages([]policies.Tokens{2000}, 3, 3)
					left.Stages[0].Replicas = left.Stages[0].Replicas[1:]
					w.drain("r0", left)
					time.Sleep(30 * time.Second)
					s := w.nodes["r0"].Status()
					if s.Residents != 1 || s.Pinned != 1 || s.PinnedSeconds < 20_000 || s.PinnedSeconds > 21_000 || s.Offers != 0 {
						t.Errorf("after the drain: %+v", s)
					}
					if name == "calm" && w.messages > 19*w.moves {
						t.Errorf("%d messages for %d moves", w.messages, w.moves)
					}
				})
				if got := w.count(); got != 61 {
					t.Errorf("%d requests, want 61", got)
				}
				if w.moves < 10 {
					t.Errorf("%d moves", w.moves)
				}
				w.checkRested()
			})
		})
	}
}

// TestBoundaryHalved moves a boundary under load: requests migrate in order, each once, and at most
// as many at once as there are transfer slots.
func TestBoundaryHalved(t *testing.T) {
	for name, config := range map[string]bidask.Rules{"default": {}, "paper": paper} {
		t.Run(name, func(t *testing.T) {
			runFleet(t, 8, func(w *fleet) { w.config, w.growth = config, 20 }, func(t *testing.T, w *fleet) {
				for i := range 200 {
					w.addRequest(w.ids[i%4], fmt.Sprintf("q%d", i), policies.Tokens(500+15*i), policies.NotPinned)
				}
				slots := 4
				if config.MaxConcurrentSends > 0 {
					slots = config.MaxConcurrentSends
				}
				w.plan(w.stages([]policies.Tokens{4096}, 4, 4))
				messages := 0
				w.run(func() {
					time.Sleep(5 * time.Second)
					if w.moves != 0 {
						t.Errorf("%d moves before anything outgrew its stage", w.moves)
					}
					w.plan(w.stages([]policies.Tokens{2048}, 4, 4))
					time.Sleep(10 * time.Second)
					w.mu.Lock()
					messages = w.messages // without the messages at the end
					w.mu.Unlock()
				})
				if w.hottest > slots {
					t.Errorf("%d transfers at once on one side, want at most %d", w.hottest, slots)
				}
				above := 0
				for i, id := range w.ids {
					for _, q := range w.nodes[id].requests {
						// The bucket from 2048 ends at 2560.
						if i < 4 && w.present(q) >= 2560+20*70 {
							t.Errorf("%s of %.0f tokens is still at %s", q.id, w.present(q), id)
						}
						if i >= 4 {
							above++
						}
					}
				}
				if above != w.moves || w.moves < 80 {
					t.Errorf("%d requests above the boundary after %d moves", above, w.moves)
				}
				// 2d+3 messages for each request, and 2 for each skip of a busy seller: a few
				// skips, whose number depends on who is first.
				if most := 24; messages > most*w.moves {
					t.Errorf("%d messages for %d moves", messages, w.moves)
				}
				if w.count() != 200 {
					t.Errorf("%d requests", w.count())
				}
				w.checkRested()
			})
		})
	}
}

// TestOutlier spreads an overload once.
func TestOutlier(t *testing.T) {
	runFleet(t, 8, nil, func(t *testing.T, w *fleet) {
		for i := range 8 {
			n := 10
			if i == 0 {
				n = 60
			}
			for j := range n {
				w.addRequest(w.ids[i], fmt.Sprintf("q%d-%d", i, j), policies.Tokens(900+20*j), policies.NotPinned)
			}
		}
		w.plan(w.stages(nil, 8))
		ctx, stop := context.WithCancel(t.Context())
		w.run(func() {
			go w.sendMeans(ctx)
			time.Sleep(10 * time.Second)
			moves := w.moves
			time.Sleep(50 * time.Second)
			if w.moves != moves {
				t.Errorf("%d moves in the beginning, %d more later", moves, w.moves-moves)
			}
			stop()
		})
		mean, most := policies.Tokens(0), policies.Tokens(0)
		for _, r := range w.nodes {
			mean += r.load().Held / 8
			most = max(most, r.load().Held)
		}
		if most > mean*13/10 {
			t.Errorf("most %v, mean %v", most, mean)
		}
		for id, n := range w.moved {
			if n > 2 {
				t.Errorf("%s was moved %d times", id, n)
			}
		}
		if w.moves > 60 || w.count() != 130 {
			t.Errorf("%d migrations of %d requests", w.moves, w.count())
		}
		w.checkRested()
	})
}

// TestSpill has a stage of one replica whose cache fills up.
func TestSpill(t *testing.T) {
	runFleet(t, 4, nil, func(t *testing.T, w *fleet) {
		for i := range 96 {
			w.addRequest("r0", fmt.Sprintf("q%d", i), 10_000, policies.NotPinned)
		}
		w.plan(w.stages([]policies.Tokens{20_000}, 1, 3))
		w.run(func() { time.Sleep(20 * time.Second) })
		if held := w.nodes["r0"].load().Held; held > capacity*9/10 || held < capacity*8/10 {
			t.Errorf("%v tokens held", held)
		}
		if w.moves != 6 {
			t.Errorf("%d moves", w.moves)
		}
		s := w.nodes["r0"].Status()
		if s.Offered[policies.Spill] != 6 || s.MovedOut[policies.Spill] != 6 || s.Sent[bidask.Ask] == 0 || s.Received[bidask.Bid] == 0 {
			t.Errorf("%+v", s)
		}
		w.checkRested()
	})
}

// TestFullStage keeps the requests for which the next stage has no room, and offers them at growing
// intervals.
func TestFullStage(t *testing.T) {
	runFleet(t, 2, nil, func(t *testing.T, w *fleet) {
		w.addRequest("r1", "big", capacity-100, policies.NotPinned)
		w.addRequest("r0", "q", 5000, policies.NotPinned)
		w.plan(w.stages([]policies.Tokens{2048}, 1, 1))
		w.run(func() {
			time.Sleep(10 * time.Minute)
			s := w.nodes["r0"].Status()
			// Cooldowns of 1, 2, … 32 s, then 32 s each.
			if n := s.Offered[policies.Growth]; n < 20 || n > 25 || s.Returned[bidask.ReturnNoBids] != n || w.moves != 0 {
				t.Errorf("%d offers in ten minutes, %v returned, %d moves", n, s.Returned, w.moves)
			}
		})
	})
}

// TestGonePeer checks that the loss of a peer ends everything that depends on the peer.
func TestGonePeer(t *testing.T) {
	runFleet(t, 3, func(w *fleet) { w.rate = 100 }, func(t *testing.T, w *fleet) {
		w.addRequest("r0", "q", 3000, policies.NotPinned)
		w.plan(w.stages([]policies.Tokens{2048}, 1, 2))
		w.run(func() {
			time.Sleep(time.Second)
			s := w.nodes["r0"].Status()
			if s.Exporting != 1 || s.Offers != 1 {
				t.Fatalf("%+v", s)
			}
			// The request ends, and remains the executor's responsibility.
			w.mu.Lock()
			delete(w.nodes["r0"].requests, "q")
			w.mu.Unlock()
			w.nodes["r0"].PeerGone("r1")
			w.nodes["r0"].PeerGone("r2")
			time.Sleep(time.Minute)
			s = w.nodes["r0"].Status()
			if s.Exporting != 0 || s.Offers != 0 || s.FailedOut[policies.Growth] != 1 || s.Returned[bidask.ReturnPeerGone] != 1 {
				t.Errorf("%+v", s)
			}
		})
	})
}

// TestEndedIsWithdrawn offers a request that ends before a replica has bid.
func TestEndedIsWithdrawn(t *testing.T) {
	runFleet(t, 2, func(w *fleet) { w.latency = 40 * time.Millisecond }, func(t *testing.T, w *fleet) {
		w.addRequest("r0", "q", 5000, policies.NotPinned)
		w.addRequest("r0", "p", 5000, policies.NotPinned)
		plan := w.stages([]policies.Tokens{2048}, 1, 1)
		w.plan(plan)
		w.run(func() {
			time.Sleep(10 * time.Millisecond)
			w.mu.Lock()
			delete(w.nodes["r0"].requests, "q")
			w.mu.Unlock()
			w.plan(w.stages([]policies.Tokens{8192}, 1, 1))
			time.Sleep(10 * time.Second)
			if s := w.nodes["r0"].Status(); s.Returned[bidask.ReturnWithdrawn] != 2 || s.Offers != 0 || w.moves != 0 {
				t.Errorf("%+v", s)
			}
		})
		w.checkRested()
	})
}

// TestSummaries checks that summaries reach all peers in time, and that Place and Rescue use them.
func TestSummaries(t *testing.T) {
	runFleet(t, 10, nil, func(t *testing.T, w *fleet) {
		w.addRequest("r1", "q", 5000, policies.NotPinned)
		w.plan(w.stages([]policies.Tokens{2048}, 2, 8))
		w.run(func() {
			time.Sleep(5 * time.Second)
			r0 := w.nodes["r0"]
			if s := r0.Status(); s.FreshPeers < 7 || s.SummariesSent != 9*4 && s.SummariesSent != 9*5 {
				t.Errorf("heard of %d, sent %d", s.FreshPeers, s.SummariesSent)
			}
			if at := r0.Place(policies.Request{Input: 5000}, nil); at.Replica == "" || at.Replica == "r1" || at.Address != string(at.Replica) {
				t.Errorf("placed at %+v", at)
			}
			if at, ok := r0.Rescue(policies.Request{Input: 5000}, []policies.ReplicaID{"r0"}); !ok || at.Replica == "" {
				t.Errorf("rescued at %+v, %v", at, ok)
			}
			if s := r0.Status(); s.Forwards != 1 {
				t.Errorf("%d forwards", s.Forwards)
			}
		})
	})
}

// TestChain has requests that grow through five stages.
func TestChain(t *testing.T) {
	runFleet(t, 10, func(w *fleet) { w.growth, w.loss, w.fail = 2000, 0.02, 0.1 }, func(t *testing.T, w *fleet) {
		for i := range 20 {
			w.addRequest(w.ids[i%2], fmt.Sprintf("q%d", i), 100, policies.NotPinned)
		}
		w.plan(w.stages([]policies.Tokens{1024, 2048, 8192, 32768}, 2, 2, 2, 2, 2))
		w.run(func() { time.Sleep(40 * time.Second) })
		for _, id := range w.ids[8:] {
			for _, q := range w.nodes[id].requests {
				// If one of the last two replicas is full, requests also spill to the other.
				if n := w.grown[q.id]; n < 1 || n > 4 {
					t.Errorf("%s has outgrown %d stages", q.id, n)
				}
			}
		}
		if n := len(w.nodes["r8"].requests) + len(w.nodes["r9"].requests); n != 20 || w.count() != 20 {
			t.Errorf("%d of %d requests have come to the last stage", n, w.count())
		}
		if w.moves < 60 {
			t.Errorf("%d moves", w.moves)
		}
		w.checkRested()
	})
}

// TestRetired retires a replica's migrator: it sells its requests, and neither buys nor sends its
// load.
func TestRetired(t *testing.T) {
	runFleet(t, 2, nil, func(t *testing.T, w *fleet) {
		w.addRequest("r0", "out", 5000, policies.NotPinned)
		plan := w.stages([]policies.Tokens{2048}, 1, 1)
		w.nodes["r0"].view.Retired = true
		w.plan(plan)
		w.run(func() {
			time.Sleep(10 * time.Second)
			if s := w.nodes["r0"].Status(); s.MovedOut[policies.Growth] != 1 || s.SummariesSent != 0 {
				t.Errorf("%+v", s)
			}
			w.drain("r1", plan)
			time.Sleep(time.Minute)
			if s := w.nodes["r1"].Status(); s.Offered[policies.Drain] == 0 || s.Returned[bidask.ReturnNoBids] != s.Offered[policies.Drain] || w.moves != 1 {
				t.Errorf("%+v", s)
			}
		})
		w.checkRested()
	})
}
