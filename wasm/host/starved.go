package host

import (
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// slowTick is more than a tick takes on a thread that runs, for all but code that
// makes them slow on purpose: most take 2 ns.
const slowTick = 100 * time.Nanosecond

// late is the fault of a call that a Watch ended.
func (i *Instance) late(k abi.Kind, err error) error {
	starved := i.limits[k].starved(i.Fuel())
	err = i.fault(k, TimedOut, err)
	err.(*Fault).Starved = starved
	return err
}

// starved reports whether a call that burnt so much when its time was up had no
// processor for most of it: it has used less than half of its fuel, and less than
// any code burns in that time, which is less than that where the wall limit is
// what bounds a call.
func (l Limit) starved(burnt int64) bool {
	return burnt < min(l.Fuel/2, int64(l.Wall/slowTick))
}

// Starved reports whether an error of this package says, anywhere in its chain,
// that the machine did not run the call; see Fault.Starved.
func Starved(err error) bool {
	var f *Fault
	return errors.As(err, &f) && f.Starved
}
