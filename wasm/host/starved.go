package host

import (
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// slowestTick is longer than a tick takes on a running thread, except in code that makes
// ticks slow on purpose. Most ticks take 2 ns.
const slowestTick = 100 * time.Nanosecond

// timeoutFault returns the fault of a call that a Watchdog ended.
func (i *Instance) timeoutFault(k abi.Kind, err error) error {
	starved := i.limits[k].isStarved(i.Fuel())
	err = i.fault(k, TimedOut, err)
	err.(*Fault).Starved = starved
	return err
}

// isStarved reports whether a call that reached its wall limit was not scheduled for most
// of the time: it consumed less than half of its fuel, and less fuel than slow code
// consumes in that time. The second bound is the smaller one where the wall limit, not
// the fuel, bounds a call.
func (l Limit) isStarved(burnt int64) bool {
	return burnt < min(l.Fuel/2, int64(l.Wall/slowestTick))
}

// Starved reports whether an error's chain has a Fault that is Starved.
func Starved(err error) bool {
	var f *Fault
	return errors.As(err, &f) && f.Starved
}
