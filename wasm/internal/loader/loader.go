// Package loader makes the modules of a slot from signed files: it verifies and compiles
// them, checks that they answer and answer deterministically, and replays recorded calls
// on them.
//
// A Loader is the swap.Loader of one slot. It does not decide which module is offered or
// promoted (wasm/promotion does), and does not fetch the modules' bytes.
//
// # Invariants
//
//  1. Only modules that the ring has signed for this kind are compiled.
//  2. The limits of a module are the lower ones of its grant and this host's.
//  3. When a module's Close returns, its goroutine has ended and its instances are
//     freed.
package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/internal/swap"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Policy is what a slot calls: a *policy.Policy, or a *policy.NativeRecorder while no
// module decides. Only the methods of the slot's kind are called.
type Policy interface {
	policies.Partitioner
	policies.Refiner
	policies.Quoter
	policies.Selector
	policies.Detector
	policies.Placer
	policy.Guard
	// The same with the state that the module keeps for the caller.
	PartitionFor(*policy.Memory, policies.Workload) (policies.Partition, error)
	RefineFor(*policy.Memory, policies.BoundaryView) policies.Tokens
	GuardFor(*policy.Memory, abi.Change) (abi.Denial, bool)
	// Records returns the recorded calls; the caller may keep them.
	Records() []host.Record
}

var (
	_ Policy              = (*policy.Policy)(nil)
	_ Policy              = (*policy.NativeRecorder)(nil)
	_ swap.Loader[Policy] = (*Loader)(nil)
)

// Config configures a Loader.
type Config struct {
	// Kind is the kind that the slot decides. Required.
	Kind abi.Kind
	// Native answers the calls that a module does not answer; it must have a policy for
	// Kind. If its Partitioner is a planguard.Native, partitions are compared by its
	// prices. Its Guard is not used: a plan that a module's guard cannot judge is denied.
	Native policy.Native
	// Ring holds the keys whose signatures are valid. Required.
	Ring sign.Ring
	// Admit returns an error if a statement that the ring signed must not run here, for
	// example because it is too old. Nil admits all.
	Admit func(sign.Statement) error
	// Limits bound the calls of each kind; a grant can lower them. 0 means the kind's
	// default.
	Limits [abi.NumKinds]host.Limit
	// Engine, Cache, its bounds and Watch are as in host.Config.
	Engine       *host.Engine
	Cache        string
	CacheBytes   int64
	CacheModules int
	Watch        *host.Watchdog
	// InForce calls a function with the active policy and its generation; the policy is
	// not freed before the function returns. Modules in shadow replay its recorded
	// calls, and it replays the calls of modules in canary. Nil means that there is no
	// active policy: modules stay in shadow.
	InForce func(func(lifecycle.Generation, Policy))
	// Every, Keep, KeepBytes and Instances are as in policy.Config, and Clock is its Now.
	Every, Keep, KeepBytes, Instances int
	Clock                             func() policies.Micros
	// Now is the clock for the expiry of statements. Nil means time.Now.
	Now func() time.Time
	// Logger gets faults and the log lines of modules. Nil discards both.
	Logger *slog.Logger
}

// Loader makes the modules of one slot. The rules of swap.Loader apply to calls of its
// methods.
type Loader struct {
	config Config

	mu     sync.Mutex
	loaded map[Policy]*module // guarded by mu: the modules by their policies
}

// New returns a loader. The error names the bad field.
func New(c Config) (*Loader, error) {
	if c.Kind <= abi.Configure || c.Kind >= abi.NumKinds {
		return nil, fmt.Errorf("loader: kind %d: name one that decides", c.Kind)
	}
	if err := c.Ring.Validate(); err != nil {
		return nil, fmt.Errorf("loader: ring: %w", err)
	}
	if c.Admit == nil {
		c.Admit = func(sign.Statement) error { return nil }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Loader{config: c, loaded: map[Policy]*module{}}, nil
}

// Verify checks the signatures, the kind and the age of a candidate's statement, its
// expiry unless the candidate is stable, and that it is about the candidate's module and
// configuration.
func (l *Loader) Verify(_ context.Context, c swap.Candidate) error {
	f, err := sign.Decode(c.Signature)
	if err != nil {
		return err
	}
	now := l.config.Now()
	if c.Stable {
		now = time.Time{} // a stable module runs on after its statement has expired
	}
	s, err := sign.Verify(f, c.Module, c.Configuration, l.config.Ring, now)
	if err != nil {
		return err
	}
	if _, ok := s.Grant(l.config.Kind); !ok {
		return fmt.Errorf("%s is not signed for %s", s.Name, l.config.Kind)
	}
	if s.Generation != c.Generation {
		return fmt.Errorf("%s is offered as generation %d, and signed as %d", s.Name, c.Generation, s.Generation)
	}
	return l.config.Admit(s)
}

// Compile returns the module of a candidate that Verify has passed.
func (l *Loader) Compile(ctx context.Context, c swap.Candidate, fault func()) (swap.Module[Policy], error) {
	f, err := sign.Decode(c.Signature)
	if err != nil {
		return swap.Module[Policy]{}, err
	}
	grant, _ := f.Statement.Grant(l.config.Kind)
	log := l.config.Logger.With("kind", l.config.Kind.String(), "generation", uint64(c.Generation), "name", f.Statement.Name, "version", f.Statement.Version)
	limits := l.config.Limits
	limits[l.config.Kind] = least(limits[l.config.Kind], host.DefaultLimit(l.config.Kind), grant)
	m, err := host.Load(ctx, host.Config{Kinds: []abi.Kind{l.config.Kind}, Limits: limits, Engine: l.config.Engine, Cache: l.config.Cache,
		CacheBytes: l.config.CacheBytes, CacheModules: l.config.CacheModules, Watchdog: l.config.Watch, Logger: log}, c.Module)
	if err != nil {
		return swap.Module[Policy]{}, err
	}
	made := &module{loader: l, host: m, configuration: c.Configuration, judge: newJudge(l.config.Native), seen: map[source]uint64{}}
	if len(f.Golden) > 0 {
		if made.expected, err = calllog.Golden(f.Golden, m.SHA256()); err != nil {
			return swap.Module[Policy]{}, errors.Join(err, m.Close())
		}
	}
	native := l.config.Native
	native.Guard = unjudged{}
	config := policy.Config{Module: m, Native: native, Configuration: c.Configuration, Instances: l.config.Instances,
		Failures: -1, Faulted: fault, Every: l.config.Every, Keep: l.config.Keep, KeepBytes: l.config.KeepBytes, Now: l.config.Clock, Logger: log}
	p, err := policy.New(config)
	for host.Starved(err) && ctx.Err() == nil {
		p, err = policy.New(config)
	}
	if err != nil {
		return swap.Module[Policy]{}, errors.Join(err, m.Close())
	}
	l.warnOfOldPartition(m, c.Configuration, log.Warn)
	made.policy = p
	made.run()
	l.mu.Lock()
	l.loaded[p] = made
	l.mu.Unlock()
	out := swap.Module[Policy]{Policy: p, Warm: made.warm, Close: made.close, Logger: log}
	if l.config.InForce != nil {
		out.Replay, out.Compare = made.replay, made.compare
	}
	return out, nil
}

// module returns the module from which Compile made a policy, nil for a native policy.
func (l *Loader) module(p Policy) *module {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loaded[p]
}

// unjudged is the guard that answers when a module's guard fails. It denies every plan:
// a failure must not let a plan pass that the guard would have denied.
type unjudged struct{}

// Guard implements policy.Guard.
func (unjudged) Guard(abi.Change) (abi.Denial, bool) {
	return abi.Denial{Stage: -1, Detail: "the guard's module could not judge the plan"}, true
}

// least returns the lower of the host's limits, or their defaults, and those of a grant.
func least(l, by host.Limit, g sign.Grant) host.Limit {
	l.Fuel = cmp.Or(l.Fuel, by.Fuel)
	l.Wall = cmp.Or(l.Wall, by.Wall)
	l.Pages = cmp.Or(l.Pages, by.Pages)
	if g.Fuel > 0 && g.Fuel < uint64(l.Fuel) {
		l.Fuel = int64(g.Fuel)
	}
	if g.Micros > 0 && g.Micros < uint64(l.Wall/time.Microsecond) {
		l.Wall = time.Duration(g.Micros) * time.Microsecond
	}
	if g.Pages > 0 && g.Pages < uint64(l.Pages) {
		l.Pages = uint32(g.Pages)
	}
	return l
}
