package memtransport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/pull"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Step is a call at the receiving side where something can go wrong.
type Step int

const (
	AtOpen Step = iota
	AtPull
)

// Kind is what goes wrong.
type Kind int

const (
	// None is a call that goes well.
	None Kind = iota
	// Delay waits For, or as long as the caller lets it, and goes on.
	Delay
	// Hang waits until the caller gives up: its context ends, the puller is
	// closed, or the grant expires.
	Hang
	// Cut ends the call with an error, as a connection that breaks.
	Cut
	// Refuse ends an Open with transport.ErrRefused, and a Pull as Cut does.
	Refuse
	// Corrupt flips bits in the first byte of a block as it arrives: the pull
	// reports it, and the byte is wrong until the block is pulled again. It does
	// nothing to an Open.
	Corrupt
)

func (k Kind) String() string {
	names := [...]string{"none", "delay", "hang", "cut", "refuse", "corrupt"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return names[k]
}

// Fault is one thing that goes wrong.
type Fault struct {
	At  Step
	Nth int // which call of that step, counted from 0 since Set
	// Block is the plan's entry at which it happens: those before it have
	// arrived. Beyond the plan means after its last block; an Open has no
	// blocks.
	Block int
	Kind  Kind
	For   time.Duration // of a Delay
}

// Faults is the script of one transport's receiving side. The zero value and
// nil have none; it is safe for concurrent use.
type Faults struct {
	mu     sync.Mutex
	script []Fault
	calls  [AtPull + 1]int
}

// Set replaces the script, and counts calls from 0 again. Of several faults for
// one call the first happens.
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

// openTimeout bounds an Open that hangs: it knows no grant yet.
const openTimeout = 5 * time.Second

func (f *Faults) open(ctx context.Context) error {
	fault := f.next(AtOpen)
	if fault.Kind == Refuse {
		return transport.ErrRefused
	}
	return fault.wait(ctx, nil, time.Now().Add(openTimeout))
}

// wait is the part of a fault that does not touch bytes.
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
		return pull.ErrClosed
	}
}
