package host

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// The prices of imports, see the package comment.
const (
	HostTicks = 16
	HostBytes = 64
)

// Version names what fuel means: counts of different versions do not compare.
const Version = meter.Version + "+host/1"

// The cache's limits when a Config says nothing else.
const (
	defaultCacheBytes   = 512 << 20
	defaultCacheModules = 64
)

// mostFrame keeps frames below what package abi can address.
const mostFrame = 1 << 30

// Limit bounds the calls of one kind.
type Limit struct {
	// Fuel is what one call may burn, in ticks; see package meter. 0 means the
	// kind's default.
	Fuel int64
	// Wall is how long one call may take before a Watch ends it. It is there for
	// code that makes ticks slow; Fuel ends all else earlier. 0 means the kind's
	// default.
	Wall time.Duration
	// Pages bounds the memory of modules that decide the kind, in pages of
	// 64 KiB. A module that decides several has the largest. 0 means the kind's
	// default.
	Pages uint32
	// Frame bounds what the host writes for one call, in bytes: words that take
	// more are not sent (TooLarge). 0 means the kind's default.
	Frame int
	// Stack bounds how deep calls of modules that decide the kind nest, in bytes
	// as meter.Config.Stack counts them; the engine's stack has at most three
	// times as many, usually less than twice. A module that decides several has
	// the largest. 0 means the kind's default.
	Stack int64
}

// defaults are sized for guests in standard Go, which need 8 MiB before their
// garbage collector begins. Refine has four times the fuel of the largest question
// that a migrator asks, of some 20,000 requests (BenchmarkRefineFuel has the table);
// partition a hundred times what 10,000 replicas in 119 buckets take; guard, which
// sees the names of two plans, some eight times what rules in Rego take about 10,000
// replicas, whose names then may have 96 bytes.
//
// Fuel bounds what a module does; the wall is there for code that makes ticks slow, and
// also measures the machine. So that of the kinds that come with requests is longer
// than a loaded machine lets a thread wait, by far more than their fuel takes, and that
// of the others is what a loop can spare that renews a lease every second.
var defaults = [abi.Kinds]Limit{
	abi.Configure: {50_000_000, time.Second, 128, 256 << 10, callStack},
	abi.Partition: {2_000_000_000, time.Second, 1024, 1 << 20, 64 * callStack},
	abi.Refine:    {40_000_000, time.Second, 256, 512 << 10, 4 * callStack},
	abi.Quote:     {50_000, requestWall, 128, 8 << 10, callStack},
	abi.Select:    {50_000, requestWall, 128, 8 << 10, callStack},
	abi.Outlier:   {50_000, requestWall, 128, 8 << 10, callStack},
	abi.Place:     {50_000, requestWall, 128, 64 << 10, callStack},
	abi.Guard:     {20_000_000, time.Second, 512, 2 << 20, 4 * callStack},
}

// requestWall ends a call of the kinds that come with requests.
const requestWall = 250 * time.Millisecond

// callStack is what a call of the kinds that come with requests may nest. Go's
// runtime starts and collects garbage in three quarters of it.
const callStack = meter.DefaultStack

// defaultStart bounds a new instance: Go's runtime starts in under a million
// ticks.
var defaultStart = Limit{Fuel: meter.DefaultStartFuel, Wall: time.Second}

// DefaultLimit returns the limit of a kind when a Config says nothing else.
func DefaultLimit(k abi.Kind) Limit {
	if k < abi.Kinds {
		return defaults[k]
	}
	return Limit{}
}

// Config says what a module may do.
type Config struct {
	// Kinds is what the module shall decide: it must export all of them, and can
	// be called for no other. Nil means all that it exports. Configure need not
	// be named.
	Kinds []abi.Kind
	// Limits bound the calls by kind.
	Limits [abi.Kinds]Limit
	// Start bounds a new instance's initialisation, by Fuel and Wall. 0 means
	// 50M ticks and 1 s. A start section, which few compilers emit, is bounded by
	// the fuel alone.
	Start Limit
	// Meter bounds the module itself. Pages, Stack and StartFuel are taken from the
	// limits above.
	Meter meter.Config
	// Engine is what the module shares with others of the process; nil means
	// nothing.
	Engine *Engine
	// Cache is a folder for machine code, made if it does not exist, so that a
	// module is compiled once per machine. Whoever can write to it runs code in
	// this process: a folder that others than its owner can write to is refused.
	// Several processes may share it. "" means none.
	Cache string
	// CacheBytes and CacheModules bound what is in it, all versions of modules and
	// of this program together: beyond, what was loaded longest ago is removed,
	// unless it is loaded now, in any process. They are looked at when a module is
	// compiled. A module in Go takes some 8 MiB. 0 means 512 MiB and 64.
	CacheBytes   int64
	CacheModules int
	// Watch ends calls that exceed their wall limit, while it runs. Nil means
	// that fuel is the only bound.
	Watch *Watch
	// Logger gets what modules log, at most LogLines a second for each module.
	// Nil discards it.
	Logger *slog.Logger
}

// filled returns the config with its defaults, or what is wrong with it.
func (c Config) filled() (Config, error) {
	for k := range abi.Kinds {
		l, err := c.Limits[k].over(defaults[k])
		if err != nil {
			return c, fmt.Errorf("host: limit of %s: %w", k, err)
		}
		c.Limits[k] = l
	}
	start, err := c.Start.over(defaultStart)
	if err != nil {
		return c, fmt.Errorf("host: Start: %w", err)
	}
	c.Start = start
	c.Meter.StartFuel = c.Start.Fuel
	if c.CacheBytes == 0 {
		c.CacheBytes = defaultCacheBytes
	}
	if c.CacheModules == 0 {
		c.CacheModules = defaultCacheModules
	}
	if c.CacheBytes < 0 || c.CacheModules < 0 {
		return c, errors.New("host: CacheBytes and CacheModules must not be negative")
	}
	for _, k := range c.Kinds {
		if k >= abi.Kinds {
			return c, fmt.Errorf("host: Kinds: there is no kind %d", k)
		}
	}
	if c.Engine == nil {
		c.Engine = NewEngine()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// over fills in what is 0 from a default.
func (l Limit) over(d Limit) (Limit, error) {
	if l.Fuel == 0 {
		l.Fuel = d.Fuel
	}
	if l.Wall == 0 {
		l.Wall = d.Wall
	}
	if l.Pages == 0 {
		l.Pages = d.Pages
	}
	if l.Frame == 0 {
		l.Frame = d.Frame
	}
	if l.Stack == 0 {
		l.Stack = d.Stack
	}
	switch {
	case l.Fuel < 0 || l.Fuel > meter.MaxFuel:
		return l, fmt.Errorf("Fuel must be from 1 to meter.MaxFuel, or 0 for its default")
	case l.Wall < 0:
		return l, fmt.Errorf("Wall must not be negative")
	case l.Pages > 65_536:
		return l, fmt.Errorf("Pages must be at most 65536")
	case l.Frame < 0 || l.Frame > mostFrame:
		return l, fmt.Errorf("Frame must be at most 2^30")
	case l.Stack < 0 || l.Stack > meter.MaxFuel:
		return l, fmt.Errorf("Stack must be from 1 to meter.MaxFuel, or 0 for its default")
	}
	return l, nil
}

// room is the memory and the stack that a module with these kinds may have.
func (c Config) room(kinds []abi.Kind) (pages uint32, stack int64) {
	for _, k := range kinds {
		pages, stack = max(pages, c.Limits[k].Pages), max(stack, c.Limits[k].Stack)
	}
	return pages, stack
}
