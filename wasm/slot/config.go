package slot

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
	DefaultWorse        = 20 // ‰
)

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
	// active generation's by the host's own measure. More reject the generation,
	// once Calls and Compared are reached. 0 means DefaultWorse, and below 0 none.
	Worse int
	// Differ is how many answers, in ‰, may differ from the active generation's.
	// A policy that is meant to be different differs: 0 means any number, and
	// below 0 none.
	Differ int
}

// complete fills the defaults in and checks the rest.
func (c Config) complete() (Config, error) {
	if c.Kind <= abi.Configure || c.Kind >= abi.Kinds {
		return c, fmt.Errorf("kind %s: name one that decides", c.Kind)
	}
	shadow, canary := uint64(1), uint64(1)
	if PerRequest(c.Kind) {
		shadow, canary = DefaultShadowCalls, DefaultCanaryCalls
	}
	c.Shadow, c.Canary = c.Shadow.complete(shadow, DefaultShadowSoak), c.Canary.complete(canary, DefaultCanarySoak)
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
	if c.Faults < 1 || c.Faults > MaxFaults || c.CanaryFaults < 1 || c.Window < 0 {
		return c, fmt.Errorf("faults %d, in canary %d, window %d µs: must be positive, faults at most %d", c.Faults, c.CanaryFaults, c.Window, MaxFaults)
	}
	return c, nil
}

func (g Gate) complete(calls uint64, soak policies.Micros) Gate {
	if g.Calls == 0 {
		g.Calls = calls
	}
	if g.Soak == 0 {
		g.Soak = soak
	}
	if g.Worse == 0 {
		g.Worse = DefaultWorse
	}
	if g.Differ == 0 {
		g.Differ = 1000
	}
	g.Soak, g.Worse, g.Differ = max(g.Soak, 0), max(g.Worse, 0), max(g.Differ, 0)
	return g
}

// verdict judges what a stage has shown so far: pass to go on, a reason to
// reject, or neither to wait.
func (g Gate) verdict(f Figures, lasted policies.Micros) (pass bool, reason string) {
	if f.Calls < g.Calls || f.Compared < g.Compared {
		return false, ""
	}
	if over(f.Worse, g.Worse, f.Compared) {
		return false, fmt.Sprintf("%d of %d answers worse than the active policy's, %d ‰ may be", f.Worse, f.Compared, g.Worse)
	}
	if over(f.Differ, g.Differ, f.Compared) {
		return false, fmt.Sprintf("%d of %d answers differ from the active policy's, %d ‰ may", f.Differ, f.Compared, g.Differ)
	}
	return lasted >= g.Soak, ""
}

// over reports whether n of all is more than so many ‰, without overflow.
func over(n uint64, permille int, all uint64) bool {
	return n > all/1000*uint64(permille)+all%1000*uint64(permille)/1000
}
