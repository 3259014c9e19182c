package host

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// HostTicks and HostBytes are the prices of imports, see the package comment.
const (
	HostTicks = 16
	HostBytes = 64
)

// Version identifies the meaning of fuel: counts of different versions are not
// comparable.
const Version = meter.Version + "+host/1"

// The limits of the cache, over all versions of modules and of this program. A module in Go
// takes some 8 MiB.
const (
	cacheBytes   = 512 << 20
	cacheModules = 64
)

// maxFrame bounds Limit.Frame, below the limit of package abi.
const maxFrame = 1 << 30

// Limit bounds the calls of one kind.
type Limit struct {
	// Fuel bounds what one call may consume, in ticks; see package meter. 0 means
	// the kind's default.
	Fuel int64
	// Wall is the wall-clock time after which a Watchdog ends a call. It bounds code
	// whose ticks are slow; Fuel ends all other code earlier. 0 means the kind's
	// default.
	Wall time.Duration
	// Pages bounds the memory of modules that decide the kind, in pages of
	// 64 KiB. A module that decides several kinds has the largest limit. 0 means the
	// kind's default.
	Pages uint32
	// Frame bounds a call's frame, in bytes: arguments that need a larger one are an
	// error (TooLarge). 0 means the kind's default.
	Frame int
	// Stack bounds the call stack of modules that decide the kind, in bytes as
	// meter.Config.Stack counts them. The engine's stack takes at most three times
	// as many bytes, usually less than twice. A module that decides several kinds
	// has the largest limit. 0 means the kind's default.
	Stack int64
}

// defaults are sized for guests in standard Go, which allocate 8 MiB before their
// garbage collector first runs. Refine has four times the fuel of a migrator's largest
// call, with some 20,000 requests (BenchmarkRefineFuel has the table); partition a
// hundred times that of 10,000 replicas in 119 buckets; guard, which reads the names of
// two plans, some eight times that of Rego rules about 10,000 replicas with names of up
// to 96 bytes.
//
// Fuel bounds the work of a module. The wall limit is for code whose ticks are slow, and
// also measures how busy the machine is. Hence the wall limit of per-request kinds is
// longer than a thread waits for a processor on a loaded machine, which is far longer
// than their fuel lasts; that of the others is short enough for a loop that renews a
// lease every second.
var defaults = [abi.NumKinds]Limit{
	abi.Configure: {50_000_000, time.Second, 128, 256 << 10, callStack},
	abi.Partition: {2_000_000_000, time.Second, 1024, 1 << 20, 64 * callStack},
	abi.Refine:    {40_000_000, time.Second, 256, 512 << 10, 4 * callStack},
	abi.Place:     {50_000, requestTimeout, 128, 64 << 10, callStack},
	abi.Guard:     {20_000_000, time.Second, 512, 2 << 20, 4 * callStack},
}

// requestLimit is the default of the other kinds, which decide for a request.
var requestLimit = Limit{50_000, requestTimeout, 128, 8 << 10, callStack}

// requestTimeout is the wall limit of per-request kinds.
const requestTimeout = 250 * time.Millisecond

// callStack is the stack limit of per-request kinds, in bytes. Go's runtime needs
// three quarters of it to start and to collect garbage.
const callStack = meter.DefaultStack

// defaultStart bounds the initialisation of an instance: Go's runtime needs less than a
// million ticks.
var defaultStart = Limit{Fuel: meter.DefaultStartFuel, Wall: time.Second}

// DefaultLimit returns the default limit of a kind.
func DefaultLimit(k abi.Kind) Limit {
	switch {
	case k >= abi.NumKinds:
		return Limit{}
	case defaults[k] == Limit{}:
		return requestLimit
	}
	return defaults[k]
}

// Config configures a module and its limits.
type Config struct {
	// Kinds lists the kinds that the module decides: it must export all of them, and
	// calls of other kinds are an error (Unknown). Nil means all kinds that it
	// exports. Configure is always included.
	Kinds []abi.Kind
	// Limits bound the calls by kind.
	Limits [abi.NumKinds]Limit
	// Start bounds the initialisation of an instance, by Fuel and Wall. 0 means 50M
	// ticks and 1 s. A start section, which few compilers emit, is bounded by fuel
	// only.
	Start Limit
	// Meter bounds the module's code. Pages, Stack and StartFuel come from the limits
	// above.
	Meter meter.Config
	// Engine holds what the process's modules share; nil means an engine of the
	// module's own.
	Engine *Engine
	// Cache is a directory for machine code, created if it does not exist, so that a
	// module is compiled once per host. Any user who can write to it can run code in
	// this process: Load refuses a directory that users other than its owner can
	// write to. Several processes may share it. When a module is loaded, the entries that
	// were loaded longest ago are removed until the rest has at most 512 MiB and 64
	// modules. "" means no cache.
	Cache string
	// Watchdog ends calls that exceed their wall limit, while it runs. Nil means that
	// only fuel bounds calls.
	Watchdog *Watchdog
	// Logger receives the lines that modules log, at most LogLines a second per
	// module. Nil discards them.
	Logger *slog.Logger
}

// withDefaults returns the configuration with its defaults, or an error that names the
// invalid field.
func (c Config) withDefaults() (Config, error) {
	for k := range abi.NumKinds {
		l, err := c.Limits[k].withDefaults(DefaultLimit(k))
		if err != nil {
			return c, fmt.Errorf("host: limit of %s: %w", k, err)
		}
		c.Limits[k] = l
	}
	start, err := c.Start.withDefaults(defaultStart)
	if err != nil {
		return c, fmt.Errorf("host: Start: %w", err)
	}
	c.Start = start
	c.Meter.StartFuel = c.Start.Fuel
	for _, k := range c.Kinds {
		if k >= abi.NumKinds {
			return c, fmt.Errorf("host: Kinds: %d: unknown kind", k)
		}
	}
	c.Engine = cmp.Or(c.Engine, NewEngine())
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c, nil
}

// withDefaults returns the limit with defaults for its zero fields.
func (l Limit) withDefaults(d Limit) (Limit, error) {
	l.Fuel = cmp.Or(l.Fuel, d.Fuel)
	l.Wall = cmp.Or(l.Wall, d.Wall)
	l.Pages = cmp.Or(l.Pages, d.Pages)
	l.Frame = cmp.Or(l.Frame, d.Frame)
	l.Stack = cmp.Or(l.Stack, d.Stack)
	switch {
	case l.Fuel < 0 || l.Fuel > meter.MaxFuel:
		return l, fmt.Errorf("Fuel must be from 1 to meter.MaxFuel, or 0 for its default")
	case l.Wall < 0:
		return l, fmt.Errorf("Wall must not be negative")
	case l.Pages > 65_536:
		return l, fmt.Errorf("Pages must be at most 65536")
	case l.Frame < 0 || l.Frame > maxFrame:
		return l, fmt.Errorf("Frame must be at most 2^30")
	case l.Stack < 0 || l.Stack > meter.MaxFuel:
		return l, fmt.Errorf("Stack must be from 1 to meter.MaxFuel, or 0 for its default")
	}
	return l, nil
}

// memoryAndStack returns the memory and stack limits of a module with these kinds.
func (c Config) memoryAndStack(kinds []abi.Kind) (pages uint32, stack int64) {
	for _, k := range kinds {
		pages, stack = max(pages, c.Limits[k].Pages), max(stack, c.Limits[k].Stack)
	}
	return pages, stack
}
