package slothost

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestUnderFire makes calls while modules are offered, promoted, active and withdrawn;
// some trap in canary, some in one of a hundred calls while they are active. It checks
// that every call gets the right answer, and that every bad module is rejected in the
// end. (200,000 calls and 50 modules; 10,000,000 and 1,000 with CASCADE_TEST_ALL.)
func TestUnderFire(t *testing.T) {
	calls, modules := uint64(testkit.Size(200_000, 10_000_000)), lifecycle.Generation(testkit.Size(50, 1000))
	c := config(t)
	c.Every, c.Logger = 64, nil
	c.Gates[abi.Select].Window = 3600 * policies.Second
	s, _ := running(t, c)

	const callers = 3
	var made, wrong atomic.Uint64
	var over atomic.Bool
	var group sync.WaitGroup
	for n := range callers {
		group.Go(func() {
			selector := s.Selector()
			var words [64][]policies.Bid
			var answers [64]int
			for i := range words {
				words[i] = bids(1+i%16, uint64(n*100+i))
				answers[i] = natives.Selector.Select(words[i])
			}
			for i := 0; !over.Load(); i++ {
				if selector.Select(words[i%64]) != answers[i%64] {
					wrong.Add(1)
				}
				made.Add(1)
			}
		})
	}
	group.Go(func() { // the other calls of a host
		for ; !over.Load(); time.Sleep(time.Millisecond) {
			s.Records(abi.Select)
			s.Status()
			_ = s.Check(want())
		}
	})

	var good, inCanary, whileActive uint64
	reach := func(g lifecycle.Generation, to string) {
		t.Helper()
		waitFor(t, fmt.Sprintf("generation %d is %s", g, to), func() bool { return phase(s, g) == to })
	}
	last := stable(t, 2, other(1))
	apply(t, s, want(last))
	reach(2, "active")
	for g := lifecycle.Generation(3); g < 3+modules; g++ {
		switch {
		case g%100 == 7:
			// Only canary distinguishes these from the others: no recorded call traps. On a busy
			// machine one may be active before its fault is counted, and is taken back for the next.
			try := candidate(t, g, lifecycle.ToActive, trapsWhere(int64(c.Every)-1, 6))
			apply(t, s, want(last, try))
			reach(g, "rejected")
			inCanary++
		case g%100 == 32:
			apply(t, s, want(stable(t, g, hosttest.LeastLoadModule(hosttest.OneIn(100, hosttest.Unreachable)))))
			reach(g, "rejected")
			whileActive++
		case g%10 == 3: // through all phases
			last.Module = nil
			apply(t, s, want(last, candidate(t, g, lifecycle.ToActive, other(int32(g)))))
			reach(g, "active")
			good++
			last = stable(t, g, other(int32(g)))
			apply(t, s, want(last))
		default:
			last = stable(t, g, other(int32(g)))
			apply(t, s, want(last))
			reach(g, "active")
			good++
		}
	}
	for made.Load() < calls { // however long the race detector takes
		time.Sleep(time.Millisecond)
	}
	over.Store(true)
	group.Wait()
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d of %d answers are wrong", n, made.Load())
	}
	if inCanary == 0 || whileActive == 0 || good+inCanary+whileActive != uint64(modules) {
		t.Errorf("%d good, %d trapped in canary, %d while active", good, inCanary, whileActive)
	}
	t.Logf("%d calls, %d modules active, %d rejected in canary, %d while active", made.Load(), good, inCanary, whileActive)
}
