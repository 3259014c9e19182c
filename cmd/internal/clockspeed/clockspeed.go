// Package clockspeed chooses how many times faster than real time emulated fleets run, on a
// machine that may be short of CPU.
//
// A comparison starts at the speed that was asked for. While a fleet runs, its owner passes a
// Reading of its engines to [Governor.Watch] about once a second, and at the end of the run to
// [Governor.End]. If the engines fall behind, the Governor lowers its speed to what they reached, and
// the owner starts all runs of the comparison again. That happens twice at most. At the last speed
// the runs go on, and one that stayed behind is void.
//
// The engines' lateness decides, not the idle CPU: a busy machine may still serve engines in time,
// and one with idle CPU may not. The package reads no clock: equal readings give equal decisions.
//
// Invariant: the speed never rises, so that all runs since the last start have the same one.
package clockspeed

import (
	"fmt"
	"math"
	"time"
)

const (
	// MaxLateness is the greatest lateness of a valid run: the mean delay of an iteration's tokens
	// as a share of the iteration's length. With iterations of 30 ms it is some milliseconds of
	// engine time, where the mean times to the first token that are compared are hundreds.
	MaxLateness = 0.25
	// headroom is the greatest lateness in the first seconds at a speed: later phases may be heavier.
	headroom = 0.8 * MaxLateness
	// hopeless is the lateness at which a speed is given up early: tokens come more than an
	// iteration late.
	hopeless = 1.0

	// firstLook and trial are how long a run lasts before a hopeless speed is given up, and before
	// the speed is confirmed. In its first seconds a fleet is late because it starts.
	firstLook = 6 * time.Second
	trial     = 15 * time.Second
	// patience is how long a hopeless run goes on at the slowest speed.
	patience = 30 * time.Second

	// slowestShare is the slowest speed as a share of the one that was asked for. The comparison
	// then takes so many times longer.
	slowestShare = 1.0 / 6
	// maxRestarts is how often a speed is given up.
	maxRestarts = 2
)

// Reading is how the engines of a run have kept up so far.
type Reading struct {
	Elapsed time.Duration // since the first request was due, in wall time
	// Lateness is the mean delay of an iteration's tokens as a share of the iteration's length, over
	// the whole run; Recent is that of the last seconds. Both are ≥ 0.
	Lateness, Recent float64
	Idle             float64 // share of the machine's CPU time that was idle; −1: unknown
}

// Verdict is what to do with a run.
type Verdict int

// The verdicts.
const (
	// Continue the run; at its end: its figures count.
	Continue Verdict = iota
	// Confirmed is returned once per speed, and continues the run: the engines keep up with a
	// reserve.
	Confirmed
	// Slower means that the speed is lowered: all runs start again.
	Slower
	// Void means that the engines stay behind at the slowest speed. During a run it ends the
	// comparison: no figure would count.
	Void
)

// Governor chooses the speed of one comparison.
type Governor struct {
	speed, slowest float64
	restarts       int
	confirmed      bool
}

// New returns a Governor that starts at a speed, which is positive. It goes down to a sixth of it, but
// not below floor.
func New(speed, floor float64) *Governor {
	return &Governor{speed: speed, slowest: min(speed, twoDigits(max(speed*slowestShare, floor)))}
}

// last reports whether the speed stays.
func (g *Governor) last() bool { return g.speed == g.slowest || g.restarts == maxRestarts }

// Speed returns the speed at which to run.
func (g *Governor) Speed() float64 { return g.speed }

// Watch decides about a run in progress. It is called about once a second.
func (g *Governor) Watch(r Reading) Verdict {
	behind := r.Lateness > MaxLateness && r.Recent > MaxLateness
	switch {
	case r.Elapsed < firstLook, g.last() && r.Elapsed < patience:
		return Continue
	case r.Lateness >= hopeless && r.Recent >= hopeless:
		return g.slowDown(r)
	case r.Elapsed < trial:
		return Continue
	case g.last():
		return Continue // what is measured may still count in the end
	case behind, !g.confirmed && r.Lateness > headroom && r.Recent > headroom:
		return g.slowDown(r)
	case !g.confirmed:
		g.confirmed = true
		return Confirmed
	}
	return Continue
}

// End decides about a run that has ended. Its Recent is 0.
func (g *Governor) End(r Reading) Verdict {
	if r.Lateness > MaxLateness {
		return g.slowDown(r)
	}
	return Continue
}

// slowDown lowers the speed to two thirds of the one that the engines reached, and at least to half: later
// phases are heavier. Engines whose iterations end L iterations late reach 1/(1+L) of their speed.
func (g *Governor) slowDown(r Reading) Verdict {
	if g.last() {
		return Void
	}
	g.speed, g.confirmed = max(twoDigits(g.speed/max(2, 1.5*(1+r.Lateness), 1.5*(1+r.Recent))), g.slowest), false
	g.restarts++
	return Slower
}

// twoDigits rounds a speed down to two digits.
func twoDigits(speed float64) float64 {
	scale := math.Pow(10, 1-math.Floor(math.Log10(speed)))
	return math.Floor(speed*scale+1e-9) / scale
}

// String describes the reading in a few words.
func (r Reading) String() string {
	text := fmt.Sprintf("tokens came %.2g iterations late on average", r.Lateness)
	if r.Idle >= 0 {
		text += fmt.Sprintf(", with %.0f %% of the CPU idle", 100*r.Idle)
	}
	return text
}
