package transporttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// Step is a call of the receiving side that a fault can happen in.
type Step int

const (
	AtOpen Step = iota
	AtPull
)

// Kind is the kind of a fault.
type Kind int

const (
	// None is no fault.
	None Kind = iota
	// Delay waits For, or until the caller gives up, and continues.
	Delay
	// Hang waits until the caller gives up: its context ends, the puller is closed, or
	// the grant expires.
	Hang
	// Cut fails the call like a broken connection.
	Cut
	// Refuse fails an Open with transport.ErrRefused, and a Pull like Cut.
	Refuse
	// Corrupt flips bits in the first byte of a block as it arrives: the pull reports the
	// block, and the byte is wrong until the block is pulled again. It does nothing to an
	// Open.
	Corrupt
)

func (k Kind) String() string {
	names := [...]string{"none", "delay", "hang", "cut", "refuse", "corrupt"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return names[k]
}

// Fault is one fault to inject.
type Fault struct {
	At  Step
	Nth int // the number of the call of that step, from 0 since Set
	// Block is the plan's entry at which the fault happens: the entries before it have
	// arrived. A number beyond the plan means after its last block; an Open has no
	// blocks.
	Block int
	Kind  Kind
	For   time.Duration // of a Delay
}

// Faults is the script of the receiving side of one transport. The zero value and nil
// have no faults. It is safe for concurrent use.
type Faults struct {
	mu     sync.Mutex
	script []Fault
	calls  [AtPull + 1]int
}

// Set replaces the script and counts calls from 0 again. Of several faults for one call
// the first one happens.
func (f *Faults) Set(script ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = append([]Fault(nil), script...)
	f.calls = [AtPull + 1]int{}
}

// next counts one call and returns its fault.
func (f *Faults) next(at Step) Fault {
	if f == nil {
		return Fault{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.calls[at]
	f.calls[at]++
	for _, fault := range f.script {
		if fault.At == at && fault.Nth == n {
			return fault
		}
	}
	return Fault{}
}

// openTimeout bounds an Open that hangs, since it knows no grant yet.
const openTimeout = 5 * time.Second

func (f *Faults) open(ctx context.Context) error {
	fault := f.next(AtOpen)
	if fault.Kind == Refuse {
		return transport.ErrRefused
	}
	return fault.wait(ctx, nil, time.Now().Add(openTimeout))
}

// wait injects a fault that does not change bytes.
func (f Fault) wait(ctx context.Context, closing <-chan struct{}, deadline time.Time) error {
	var late <-chan time.Time
	switch f.Kind {
	case None, Corrupt:
		return nil
	case Cut, Refuse:
		return errors.New("the connection broke")
	case Delay:
		timer := time.NewTimer(f.For)
		defer timer.Stop()
		late = timer.C
	}
	end := time.NewTimer(time.Until(deadline))
	defer end.Stop()
	select {
	case <-late:
		return nil
	case <-end.C:
		return errors.New("the source did not answer before the deadline")
	case <-ctx.Done():
		return ctx.Err()
	case <-closing:
		return lease.ErrClosed
	}
}
