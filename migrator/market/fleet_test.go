package market

import (
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
