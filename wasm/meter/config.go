package meter

import (
	"cmp"
	"strconv"
)

// The default limits of a Config.
const (
	DefaultSize          = 8 << 20
	DefaultTypes         = 4096
	DefaultFunctions     = 20_000
	DefaultFunctionBytes = 256 << 10
	DefaultLocals        = 4096
	DefaultMerges        = 4_000_000
	DefaultGlobals       = 4096
	DefaultDepth         = 2048
	DefaultSegments      = 65_536
	DefaultPages         = 128
	DefaultTable         = 65_536
	DefaultSlice         = 1024
	DefaultStartFuel     = 50_000_000
	DefaultStack         = 1 << 20
)

// maxPages is the maximum of a 32-bit memory, in pages of 64 KiB.
const maxPages = 65_536

// Config bounds a module. The zero value has the defaults, which suit a policy in Go.
type Config struct {
	// Imports lists the functions that a module may import. Nil means Imports().
	Imports []Import
	// Size bounds the module, in bytes. 0 means DefaultSize.
	Size int
	// Types bounds the number of function types, and how many parameters or
	// results one has in all. 0 means DefaultTypes.
	Types int
	// Functions bounds the functions, imported ones included. 0 means
	// DefaultFunctions.
	Functions int
	// FunctionBytes bounds the code of one function, because engines need more than
	// linear time to compile it. 0 means DefaultFunctionBytes.
	FunctionBytes int
	// Locals bounds parameters and locals of one function. 0 means
	// DefaultLocals.
	Locals int
	// Merges bounds the engine's work for static single assignment form, roughly in
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
	// A Go guest of 2 MB has 1.3 million. 0 means DefaultMerges.
	Merges int
	// Globals bounds the globals. 0 means DefaultGlobals.
	Globals int
	// Depth bounds the nesting of blocks. Go nests one block per point where a
	// function can be resumed, so that hundreds are common. 0 means DefaultDepth.
	Depth int
	// Segments bounds data segments, element segments and exports, each. 0
	// means DefaultSegments.
	Segments int
	// Pages bounds the memory, in pages of 64 KiB: a module with a larger initial
	// memory is refused, and a larger maximum is lowered. At most 65536; 0 means
	// DefaultPages (8 MiB).
	Pages uint32
	// Table bounds the entries of each table in the same way. A module has at most
	// 16 tables. 0 means DefaultTable.
	Table uint32
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
	for _, f := range [...]struct {
		name  string
		value *int
		def   int
	}{
		{"Size", &c.Size, DefaultSize},
		{"Types", &c.Types, DefaultTypes},
		{"Functions", &c.Functions, DefaultFunctions},
		{"FunctionBytes", &c.FunctionBytes, DefaultFunctionBytes},
		{"Locals", &c.Locals, DefaultLocals},
		{"Merges", &c.Merges, DefaultMerges},
		{"Globals", &c.Globals, DefaultGlobals},
		{"Depth", &c.Depth, DefaultDepth},
		{"Segments", &c.Segments, DefaultSegments},
	} {
		*f.value = cmp.Or(*f.value, f.def)
		// The engine accepts at most 2^27 of anything. The limit also keeps sums far from
		// overflow.
		if *f.value < 0 || *f.value > 1<<27 {
			return c, configError(f.name + " must be from 1 to " + strconv.Itoa(1<<27) + ", or 0 for its default")
		}
	}
	c.Pages = cmp.Or(c.Pages, DefaultPages)
	c.Table = cmp.Or(c.Table, DefaultTable)
	c.Slice = cmp.Or(c.Slice, DefaultSlice)
	c.StartFuel = cmp.Or(c.StartFuel, DefaultStartFuel)
	c.Stack = cmp.Or(c.Stack, DefaultStack)
	switch {
	case c.Pages > maxPages:
		return c, configError("Pages must be at most 65536")
	case c.Table > 1<<27:
		return c, configError("Table must be at most 2^27")
	case c.Slice < 0 || c.Slice > MaxFuel:
		return c, configError("Slice must be from 1 to MaxFuel, or 0 for its default")
	case c.StartFuel < 0 || c.StartFuel > MaxFuel:
		return c, configError("StartFuel must be from 1 to MaxFuel, or 0 for its default")
	case c.Stack < 0 || c.Stack > MaxFuel:
		return c, configError("Stack must be from 1 to MaxFuel, or 0 for its default")
	}
	return c, nil
}
