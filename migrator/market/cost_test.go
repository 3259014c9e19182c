package market

import (
	"fmt"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// TestCheapPeersBuy migrates grown requests from r0 to a stage of four idle replicas, of which r3
// is on r0's node: r3 buys them while its load exceeds the others' by at most a request.
func TestCheapPeersBuy(t *testing.T) {
	runFleet(t, 5, func(w *fleet) {
		w.distance = func(from, to policies.ReplicaID) policies.Micros {
			if from == "r0" && to == "r3" {
				return 1
			}
			return 10
		}
	}, func(t *testing.T, w *fleet) {
		for i := range 8 {
			w.addRequest("r0", fmt.Sprintf("q%d", i), 5000, policies.NotPinned)
		}
		w.plan(w.stages([]policies.Tokens{2000}, 1, 4))
		w.run(func() { time.Sleep(900 * time.Millisecond) }) // then the near one, an outlier, would give some away
		near, most := len(w.nodes["r3"].requests), 0
		for _, id := range w.ids[1:] {
			if id != "r3" {
				most = max(most, len(w.nodes[id].requests))
			}
		}
		if w.count() != 8 || len(w.nodes["r0"].requests) != 0 {
			t.Fatalf("%d requests, %d where they were", w.count(), len(w.nodes["r0"].requests))
		}
		if near <= most || near > most+2 {
			t.Errorf("the near one has %d requests, the most loaded of the others %d", near, most)
		}
		w.checkRested()
	})
}
