package promotion

import (
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Defaults of a Config, for kinds that decide for one request; in brackets, for
// those that decide for many.
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

// defaultWorseOfMany is the one in brackets: 3 of the 64 by which a share is judged.
const defaultWorseOfMany = 50

// Config sets a Machine up.
type Config struct {
	// Kind is what the slot decides. Required.
	Kind abi.Kind
	// Ladder is the shares of a canary, in ‰, growing, below 1,000: from the last
	// one a generation goes on to all requests. Nil means 1, 10, 100. It is not
	// used for kinds whose canary is a scope.
	Ladder []int
	// Shadow and Canary are the gates behind shadow and behind each step of the
	// canary.
	Shadow, Canary Gate
	// Patience is how long a step of the canary waits for its calls: then one that
	// has answered some, of which some were compared where Gate.Compared asks for any,
	// and none worse than the gate lets pass, goes on to the next larger share. The
	// last step, and a scope, wait for ever. A fleet that is small has no use for a
	// share in which a request comes every other minute.
	//
	// It is also how long a stage waits to be sure of what speaks against a generation
	// (Gate.Judged): then, where the answers that are missing would take as long again
	// at their pace, those there are decide. A single worse one among others counts
	// for nothing then, and two are enough; one of one or two waits for a third.
	//
	// 0 means DefaultPatience, and below 0 for ever in both.
	Patience policies.Micros
	// CanaryFaults is how many faults reject a generation during one step of its
	// canary. 0 means DefaultCanaryFaults.
	CanaryFaults int
	// Faults within Window take the active generation back. 0 means DefaultFaults
	// and DefaultWindow. Faults is at most MaxFaults.
	Faults int
	Window policies.Micros
	// Floor refuses offers below it: what Status.Floor was before a restart.
	// Resume is what was active then, or before that, or was to be: they may be
	// offered though they are below. The generations that a host is to run are
	// offered in their order.
	Floor  Generation
	Resume []Generation
}

// MaxFaults bounds Config.Faults: the times of so many faults are remembered.
const MaxFaults = 1024

// Gate is what a generation has to show to go on.
type Gate struct {
	// Calls it has answered in the stage, at least. 0 means the default; an idle
	// slot promotes nothing.
	Calls uint64
	// Soak is how long the stage lasts, at least. 0 means the default, and below
	// 0 none.
	Soak policies.Micros
	// Compared is how many of the answers have been compared with the active
	// generation's, at least. 0 means that none needs to be.
	Compared uint64
	// Worse is how many answers, in ‰ of those compared, may be worse than the
	// active generation's by the host's own measure. More are a reason against the
	// generation: in shadow it goes no further, and ends if it was to; in canary it
	// ends. That is as soon as they would be too many even if all answers that are
	// missing to Calls, Compared and Judged were as they should be. 0 means
	// DefaultWorse, and below 0 none.
	Worse int
	// Judged is how many compared answers a share is taken of, at least: a single
	// one of a few says nothing. While there are fewer, too large a share keeps the
	// generation where it is until more is known; see also Config.Patience. 0 means
	// DefaultJudged; 1 is any number.
	Judged uint64
	// Differ is how many answers, in ‰, may differ from the active generation's.
	// A policy that is meant to be different differs: 0 means any number, and
	// below 0 none.
	Differ int
}

// complete fills the defaults in and checks the rest.
func (c Config) complete() (Config, error) {
	if c.Kind <= abi.Configure || c.Kind >= abi.NumKinds {
		return c, fmt.Errorf("kind %s: name one that decides", c.Kind)
	}
	shadow, canary, worse := uint64(1), uint64(1), defaultWorseOfMany
	if PerRequest(c.Kind) {
		shadow, canary, worse = DefaultShadowCalls, DefaultCanaryCalls, DefaultWorse
	}
	c.Shadow, c.Canary = c.Shadow.complete(shadow, DefaultShadowSoak, worse), c.Canary.complete(canary, DefaultCanarySoak, worse)
	if c.Ladder == nil {
		c.Ladder = []int{1, 10, 100}
	}
	c.Ladder, c.Resume = slices.Clone(c.Ladder), slices.Clone(c.Resume)
	last := 0
	for i, p := range c.Ladder {
		if p <= last || p >= 1000 {
			return c, fmt.Errorf("ladder[%d] %d: shares grow, from 1 to 999", i, p)
		}
		last = p
	}
	if c.Faults == 0 {
		c.Faults = DefaultFaults
	}
	if c.CanaryFaults == 0 {
		c.CanaryFaults = DefaultCanaryFaults
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	if c.Faults < 1 || c.Faults > MaxFaults || c.CanaryFaults < 1 || c.Window < 0 {
		return c, fmt.Errorf("faults %d, in canary %d, window %d µs: must be positive, faults at most %d", c.Faults, c.CanaryFaults, c.Window, MaxFaults)
	}
	return c, nil
}

func (g Gate) complete(calls uint64, soak policies.Micros, worse int) Gate {
	if g.Calls == 0 {
		g.Calls = calls
	}
	if g.Soak == 0 {
		g.Soak = soak
	}
	if g.Worse == 0 {
		g.Worse = worse
	}
	if g.Differ == 0 {
		g.Differ = 1000
	}
	if g.Judged == 0 {
		g.Judged = DefaultJudged
	}
	g.Soak, g.Worse, g.Differ = max(g.Soak, 0), max(g.Worse, 0), max(g.Differ, 0)
	return g
}
