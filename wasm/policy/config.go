package policy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// The defaults of a Config, and its limits.
const (
	DefaultFailures = 5
	DefaultWindow   = time.Minute
	DefaultKeep     = 64
	// DefaultKeepBytes holds five of the largest plans, of 10,000 replicas.
	DefaultKeepBytes = 8 << 20
	mostInstances    = 1024
	mostKeep         = 1 << 20
)

// Guard judges a plan that is to replace another.
type Guard interface {
	// Guard returns a denial, and whether there is one. It is pure.
	Guard(abi.Change) (abi.Denial, bool)
}

// Native holds the policies that answer where the module does not. One is needed
// for each kind that the module decides.
type Native struct {
	Partitioner policies.Partitioner
	Refiner     policies.Refiner
	Quoter      policies.Quoter
	Selector    policies.Selector
	Detector    policies.Detector
	Placer      policies.Placer
	Guard       Guard
}

// Config configures a Policy.
type Config struct {
	// Module is the module. It must outlive Run.
	Module *host.Module
	// Native answers the calls that the module does not answer.
	Native Native
	// Configuration is passed to each new instance.
	Configuration []byte
	// Instances is how many calls can be in progress at once. 0 means GOMAXPROCS, or
	// 1 for a module that decides only kinds for many requests.
	Instances int
	// Failures within Window open the breaker. 0 means 5 and a minute; below 0 it
	// never opens, and the caller counts faults by Faulted. Calls whose arguments
	// exceed the frame limit do not count, nor do calls that timed out while
	// descheduled.
	Failures int
	Window   time.Duration
	// Faulted is called for each failure that counts, before the native policy
	// answers the call, from any goroutine. A call that timed out counts when it times
	// out again in Run. Nil does nothing.
	Faulted func()
	// Every is the recording rate: one in Every calls of each instance is recorded,
	// and all calls that fail. 0 records failed calls only.
	Every int
	// Keep is how many records an instance keeps, at most. 0 means 64.
	Keep int
	// KeepBytes bounds the memory of an instance's records, in bytes, for kinds that are
	// not decided per request, whose frames are large: beyond it the oldest records are
	// dropped, but never the last one. For other kinds only Keep is a bound. 0 means
	// 8 MiB.
	KeepBytes int
	// Now is the time that modules see in frames, in microseconds of a clock that
	// does not go back. Nil means always 0.
	Now func() policies.Micros
	// Clock is the clock for Window. Nil means time.Now.
	Clock func() time.Time
	// Logger gets one line for each fault until the breaker opens. Nil discards
	// it.
	Logger *slog.Logger
}

// filled returns the config with its defaults. The error names the bad field.
func (c Config) filled() (Config, error) {
	if c.Module == nil {
		return c, errors.New("policy: a Module is needed")
	}
	for k := range abi.NumKinds {
		if k != abi.Configure && c.Module.Decides(k) && !c.Native.Decides(k) {
			return c, fmt.Errorf("policy: the module decides %s, for which there is no native policy", k)
		}
	}
	if c.Instances == 0 {
		c.Instances = 1
		for k := range abi.NumKinds {
			if perRequest[k] && c.Module.Decides(k) {
				c.Instances = runtime.GOMAXPROCS(0)
			}
		}
	}
	c.Failures = cmp.Or(c.Failures, DefaultFailures)
	c.Window = cmp.Or(c.Window, DefaultWindow)
	c.Keep = cmp.Or(c.Keep, DefaultKeep)
	c.KeepBytes = cmp.Or(c.KeepBytes, DefaultKeepBytes)
	switch {
	case c.Instances < 0 || c.Instances > mostInstances:
		return c, fmt.Errorf("policy: Instances must be from 1 to %d, or 0 for the default", mostInstances)
	case c.Window < 0:
		return c, errors.New("policy: Window must not be negative")
	case c.Every < 0 || c.KeepBytes < 0 || c.Keep < 0 || c.Keep > mostKeep:
		return c, fmt.Errorf("policy: Every and KeepBytes must not be negative, Keep at most %d", mostKeep)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Faulted == nil {
		c.Faulted = func() {}
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Native = c.Native.filled()
	return c, nil
}

// filled returns n with an undecided policy for each kind that has none.
func (n Native) filled() Native {
	n.Partitioner = cmp.Or[policies.Partitioner](n.Partitioner, undecided{})
	n.Refiner = cmp.Or[policies.Refiner](n.Refiner, undecided{})
	n.Quoter = cmp.Or[policies.Quoter](n.Quoter, undecided{})
	n.Selector = cmp.Or[policies.Selector](n.Selector, undecided{})
	n.Detector = cmp.Or[policies.Detector](n.Detector, undecided{})
	n.Placer = cmp.Or[policies.Placer](n.Placer, undecided{})
	n.Guard = cmp.Or[Guard](n.Guard, undecided{})
	return n
}

// undecided is the native policy of kinds that neither the module nor the
// configuration decides: it decides for none of the choices.
type undecided struct{}

func (undecided) Partition(policies.Workload) (policies.Partition, error) {
	return policies.Partition{}, policies.ErrInfeasible
}
func (undecided) Refine(b policies.BoundaryView) policies.Tokens { return b.Boundary }
func (undecided) Quote(policies.Occupancy, policies.Migration) (policies.Bid, bool) {
	return policies.Bid{}, false
}
func (undecided) Select([]policies.Bid) int                    { return -1 }
func (undecided) Excess(_, _ policies.Tokens) policies.Tokens  { return 0 }
func (undecided) Place(policies.Arrival) policies.ReplicaID    { return "" }
func (undecided) Guard(abi.Change) (denial abi.Denial, _ bool) { return denial, false }
