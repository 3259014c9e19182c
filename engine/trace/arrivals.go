package trace

import (
	"math"
	"math/rand/v2"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// arrivals draws arrival times: unit-mean Gamma gaps of a clock that runs at
// each minute's own rate.
type arrivals struct {
	mean  float64 // requests/s
	gap   distuv.Gamma
	swing distuv.Gamma
	drift bool
	// The renewal clock counts expected requests. now is its present reading;
	// the minute under way starts at real second start, where the clock read
	// base, and lasts while it runs at rate.
	now, base, rate, start float64
}

// minRate keeps a minute's rate above this share of the mean, so that a
// wildly swinging generator cannot stand still.
const minRate = 0.01

func newArrivals(g Generator, rng *rand.Rand) *arrivals {
	cv := g.GapCV
	if cv == 0 {
		cv = 1
	}
	a := &arrivals{mean: g.Rate, gap: unitGamma(cv, rng), drift: g.Swing > 0}
	if a.drift {
		a.swing = unitGamma(g.Swing, rng)
	}
	a.rate = a.draw()
	return a
}

// unitGamma is the Gamma distribution of mean 1 and the given coefficient of
// variation.
func unitGamma(cv float64, rng *rand.Rand) distuv.Gamma {
	shape := 1 / (cv * cv)
	return distuv.Gamma{Alpha: shape, Beta: shape, Src: rng}
}

// draw returns a minute's rate.
func (a *arrivals) draw() float64 {
	if !a.drift {
		return a.mean
	}
	return a.mean * math.Max(a.swing.Rand(), minRate)
}

// next returns the next arrival. The first request arrives after a first gap.
func (a *arrivals) next() time.Duration {
	a.now += a.gap.Rand()
	for a.now > a.base+a.rate*minute.Seconds() {
		a.base += a.rate * minute.Seconds()
		a.start += minute.Seconds()
		if a.start > maxArrival.Seconds() {
			return math.MaxInt64
		}
		a.rate = a.draw()
	}
	return time.Duration((a.start + (a.now-a.base)/a.rate) * float64(time.Second))
}
