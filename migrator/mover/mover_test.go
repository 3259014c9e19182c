package mover_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prompt makes the ids of a client's prompt.
func prompt(seed, n int) []uint32 {
	var ids []uint32
	for i := range n {
		ids = append(ids, uint32(mix(uint64(seed*1000+i))%50_000))
	}
	return ids
}

// TestLive moves a request between two replicas, with its front at a third.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(3, 0)
		a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
		a.front.accept("a/1", prompt(1, 50), 200, b)
		time.Sleep(500 * time.Millisecond)
		w.move("a/1", b, c, policies.Growth)
		w.move("a/1", c, a, policies.Drain)
		w.move("a/1", a, b, policies.Drain)
		if !await(20*time.Second, a.front.settled) {
			t.Error("the stream does not end")
		}
		time.Sleep(silence)
		if w.live != 3 || w.anew != 0 {
			t.Errorf("%d live moves, %d others", w.live, w.anew)
		}
		for _, n := range w.nodes {
			for _, m := range n.mover.Moves() {
				t.Logf("%s: %+v", n.id, m)
			}
		}
		if left := w.leftovers(); left != nil {
			t.Error(left)
		}
		if v := w.verdicts(); v != "" {
			t.Error(v)
		}
		w.close()
	})
}
