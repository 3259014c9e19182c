package meter

import "cmp"

// The limits of every module. They suit a policy in Go.
const (
	// MaxSize bounds the module, in bytes.
	MaxSize = 8 << 20
	// maxTypes bounds the number of function types, and how many parameters or results one
	// has in all.
	maxTypes = 4096
	// maxFunctions bounds the functions, imported ones included.
	maxFunctions = 20_000
	// maxFunctionBytes bounds the code of one function, because engines need more than
	// linear time to compile it.
	maxFunctionBytes = 256 << 10
	// maxLocals bounds parameters and locals of one function.
	maxLocals = 4096
	// maxMerges bounds the engine's work for static single assignment form, roughly in
	// microseconds. Without this bound, 23 KB of code can take gigabytes, and 150 KB
	// a minute and a half. It is the sum over all functions of
	//
	//	parameters and locals, times merge points of the control flow: a block or
	//	branch is one point, a table of branches one for each branch, a loop four
	//	times its nesting depth, an inner loop as much as two nested ones;
	//	the values that blocks and branches carry;
	//	calls times mutable globals, which are read again after each call;
	//	the square of the merge points without those of tables, divided by 16, and
	//	the square of those of tables, divided by 1024.
	//
	// A Go guest of 2 MB has 1.3 million.
	maxMerges = 4_000_000
	// maxGlobals bounds the globals.
	maxGlobals = 4096
	// maxDepth bounds the nesting of blocks. Go nests one block per point where a
	// function can be resumed, so that hundreds are common.
	maxDepth = 2048
	// maxSegments bounds data segments, element segments and exports, each.
	maxSegments = 65_536
	// maxTables bounds the tables of a module, of which languages use one, and maxEntries
	// the entries of each: a larger initial table is refused, and a larger maximum lowered.
	maxTables, maxEntries = 16, 65_536
	// maxPages is the maximum of a 32-bit memory, in pages of 64 KiB.
	maxPages = 65_536
)

// The defaults of a Config.
const (
	defaultPages     = 128
	DefaultSlice     = 1024
	DefaultStartFuel = 50_000_000
	DefaultStack     = 1 << 20
)

// Config has the limits that depend on a module's kinds. The zero value has the defaults,
// which suit a policy in Go.
type Config struct {
	// Imports lists the functions that a module may import. Nil means Imports().
	Imports []Import
	// Pages bounds the memory, in pages of 64 KiB: a module with a larger initial
	// memory is refused, and a larger maximum is lowered. At most 65536; 0 means 128
	// (8 MiB).
	Pages uint32
	// Slice bounds the ticks between two returns to Go, for which the garbage
	// collector waits. It does not change the fuel of a call. 0 means DefaultSlice:
	// some microseconds of ordinary code, but some 10 ms, on a busy machine 30 ms, of
	// loads that each miss all caches, the slowest code that a module can have
	// (BenchmarkSlowest).
	Slice int64
	// StartFuel is the fuel of a new instance for its start function, and for calls
	// before the host first sets the fuel. 0 means DefaultStartFuel.
	StartFuel int64
	// Stack bounds the nesting of calls: a call traps when the bounds of its open
	// frames exceed that many bytes, and a function whose frame alone exceeds it is
	// refused. The engine's stack, which grows by doubling, takes at most three times
	// as many bytes. At most MaxFuel, where the engine's own limit of some 100 MB
	// applies first; 0 means DefaultStack. Go's runtime needs 768 KiB to start and to
	// collect garbage.
	Stack int64
}

// Import is a function that a module may import.
type Import struct{ Module, Name string }

// String returns "module.name".
func (i Import) String() string { return i.Module + "." + i.Name }

// wasi is the module of the functions of WASI.
const wasi = "wasi_snapshot_preview1"

// Imports returns the default list: the two functions of cascade-policy/1, and the
// functions of WASI that Go's wasip1 port imports in every program. The host implements
// the latter as stubs: no files, no network, no real clock. A guest that links package
// os, as fmt does, imports more functions and is refused.
func Imports() []Import {
	list := []Import{{"cascade_v1", "log"}, {"cascade_v1", "fail"}}
	for _, name := range [...]string{
		"args_get", "args_sizes_get", "clock_time_get", "environ_get", "environ_sizes_get",
		"fd_write", "poll_oneoff", "proc_exit", "random_get", "sched_yield",
	} {
		list = append(list, Import{wasi, name})
	}
	return list
}

// advice returns what an author can do about an import that is not allowed, "" if that is not known.
func (i Import) advice() string {
	if i.Module != wasi {
		return ""
	}
	return ": it belongs to files, sockets or the environment, which a policy does not have; in Go, leave out package os " +
		"and those that use it, such as fmt and encoding/json"
}

// configError is the error for an invalid Config.
type configError string

func (e configError) Error() string { return "meter: " + string(e) }

// withDefaults returns the configuration with its defaults, or an error that names the
// field out of range.
func (c Config) withDefaults() (Config, error) {
	if c.Imports == nil {
		c.Imports = Imports()
	}
	c.Pages = cmp.Or(c.Pages, defaultPages)
	c.Slice = cmp.Or(c.Slice, DefaultSlice)
	c.StartFuel = cmp.Or(c.StartFuel, DefaultStartFuel)
	c.Stack = cmp.Or(c.Stack, DefaultStack)
	switch {
	case c.Pages > maxPages:
		return c, configError("Pages must be at most 65536")
	case c.Slice < 0 || c.Slice > MaxFuel:
		return c, configError("Slice must be from 1 to MaxFuel, or 0 for its default")
	case c.StartFuel < 0 || c.StartFuel > MaxFuel:
		return c, configError("StartFuel must be from 1 to MaxFuel, or 0 for its default")
	case c.Stack < 0 || c.Stack > MaxFuel:
		return c, configError("Stack must be from 1 to MaxFuel, or 0 for its default")
	}
	return c, nil
}
