package slothost

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// Defaults of Gates, for kinds that decide for one request; in brackets, for those that
// decide for many.
const (
	DefaultShadowCalls  = 1_000  // [1]
	DefaultCanaryCalls  = 10_000 // [1]
	DefaultShadowSoak   = 10 * policies.Second
	DefaultCanarySoak   = 30 * policies.Second
	DefaultFaults       = 3
	DefaultCanaryFaults = 1
	DefaultWindow       = 10 * policies.Second
	DefaultPatience     = 120 * policies.Second
	DefaultWorse        = 20 // ‰ [50]
	DefaultJudged       = 64
)

// defaultWorseOfMany is the value in brackets: 3 of the 64 answers that a share is
// taken of.
const defaultWorseOfMany = 50

// Gates are the conditions of one slot's promotions and its fault limits.
type Gates struct {
	// Ladder is the shares of a canary, in ‰, ascending and below 1,000: from the
	// last one a generation is promoted to all requests. Nil means 1, 10, 100. It is
	// not used for kinds whose canary is a scope.
	Ladder []int
	// Shadow and Canary are the gates that end shadow and each step of the canary.
	Shadow, Canary Gate
	// Patience is how long a step of the canary waits for its calls. After it, a
	// generation goes on to the next larger share if it has answered some calls, some
	// of them were compared where Gate.Compared asks for any, and no more were worse
	// than the gate allows. The last step, and a scope, have no such limit. A small
	// fleet has no use for a share that gets a request every other minute.
	//
	// It is also how long a phase waits for enough answers to judge a generation by
	// (Gate.Judged). After it, if the missing answers would take as long again at
	// their present rate, the ones that exist decide: a single worse one among others
	// is ignored, two are enough, and one of one or two waits for a third.
	//
	// 0 means DefaultPatience; below 0 both wait without a limit.
	Patience policies.Micros
	// CanaryFaults is how many faults in one step of its canary reject a generation.
	// 0 means DefaultCanaryFaults.
	CanaryFaults int
	// Faults within Window take the active generation back. 0 means DefaultFaults
	// and DefaultWindow. Faults is at most maxFaults.
	Faults int
	Window policies.Micros
}

// maxFaults bounds Gates.Faults: a slot keeps the times of that many faults.
const maxFaults = 1024

// Gate is what a generation has to show in a phase to be promoted.
type Gate struct {
	// Calls is the least number of calls that it has answered in the phase. 0 means
	// the default; an idle slot promotes nothing.
	Calls uint64
	// Soak is the least time that the phase lasts. 0 means the default, and below 0
	// none.
	Soak policies.Micros
	// Compared is the least number of answers that have been compared with the active
	// generation's. 0 means that none needs to be.
	Compared uint64
	// Worse is how many answers, in ‰ of those compared, may be worse than the active
	// generation's by the host's own measure. With more, the generation is blocked in
	// shadow, or rejected if its goal lies beyond; in canary it is rejected. That
	// happens as soon as there would be too many even if all answers that are still
	// missing to Calls, Compared and Judged were good. 0 means DefaultWorse, and below
	// 0 none.
	Worse int
	// Judged is the least number of compared answers that a share is taken of: one of
	// a few says nothing. While there are fewer, too large a share is inconclusive and
	// the generation is not promoted; see also Gates.Patience. 0 means DefaultJudged;
	// 1 accepts any number.
	Judged uint64
}

// complete returns the gates of a kind with their defaults. The error names the bad field.
func (c Gates) complete(k lifecycle.Kind) (Gates, error) {
	shadow, canary, worse := uint64(1), uint64(1), defaultWorseOfMany
	if k.PerRequest() {
		shadow, canary, worse = DefaultShadowCalls, DefaultCanaryCalls, DefaultWorse
	}
	c.Shadow, c.Canary = c.Shadow.complete(shadow, DefaultShadowSoak, worse), c.Canary.complete(canary, DefaultCanarySoak, worse)
	if c.Ladder == nil {
		c.Ladder = []int{1, 10, 100}
	}
	c.Ladder = slices.Clone(c.Ladder)
	last := 0
	for i, p := range c.Ladder {
		if p <= last || p >= 1000 {
			return c, fmt.Errorf("ladder[%d]: %d: shares must ascend, from 1 to 999", i, p)
		}
		last = p
	}
	c.Faults = cmp.Or(c.Faults, DefaultFaults)
	c.CanaryFaults = cmp.Or(c.CanaryFaults, DefaultCanaryFaults)
	c.Window = cmp.Or(c.Window, DefaultWindow)
	c.Patience = cmp.Or(c.Patience, DefaultPatience)
	if c.Faults < 1 || c.Faults > maxFaults || c.CanaryFaults < 1 || c.Window < 0 {
		return c, fmt.Errorf("faults %d, in canary %d, window %d µs: must be positive, faults at most %d", c.Faults, c.CanaryFaults, c.Window, maxFaults)
	}
	return c, nil
}

func (g Gate) complete(calls uint64, soak policies.Micros, worse int) Gate {
	g.Calls = cmp.Or(g.Calls, calls)
	g.Soak = cmp.Or(g.Soak, soak)
	g.Worse = cmp.Or(g.Worse, worse)
	g.Judged = cmp.Or(g.Judged, DefaultJudged)
	g.Soak, g.Worse = max(g.Soak, 0), max(g.Worse, 0)
	return g
}
