package meter

import "strconv"

// The limits that a Config has when it says nothing else.
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

// maxPages is what a 32-bit memory can have, of 64 KiB each.
const maxPages = 65_536

// Config says what a module may have. The zero value has the defaults, which
// suit a policy written in Go.
type Config struct {
	// Imports lists the functions a module may import. Nil means Imports().
	Imports []Import
	// Size bounds the module, in bytes. 0 means DefaultSize.
	Size int
	// Types bounds the number of function types, and how many parameters or
	// results one has in all. 0 means DefaultTypes.
	Types int
	// Functions bounds the functions, imported ones included. 0 means
	// DefaultFunctions.
	Functions int
	// FunctionBytes bounds the code of one function: engines need more than
	// linear time for it. 0 means DefaultFunctionBytes.
	FunctionBytes int
	// Locals bounds parameters and locals of one function. 0 means
	// DefaultLocals.
	Locals int
	// Merges bounds the work of an engine that brings code into static single
	// assignment form, in microseconds or so, whatever the code's size: without
	// this bound 23 KB can take gigabytes, and 150 KB a minute and a half. It is
	// the sum over all functions of
	//
	//	parameters and locals times places where control flow can meet: blocks and
	//	branches count one, a table of branches one for each, a loop four times its
	//	depth among loops, one without loops in it as two, one in the other;
	//	the values that blocks and branches carry;
	//	calls times globals that can change, which are read anew after each;
	//	the square of the places but those of tables, by 16, and of these by 1024.
	//
	// A Go guest of 2 MB has 1.3 million. 0 means DefaultMerges.
	Merges int
	// Globals bounds the globals. 0 means DefaultGlobals.
	Globals int
	// Depth bounds how deeply blocks nest. Go nests one block per point where a
	// function can be resumed, so that hundreds are usual. 0 means DefaultDepth.
	Depth int
	// Segments bounds data segments, element segments and exports, each. 0
	// means DefaultSegments.
	Segments int
	// Pages bounds the memory, in pages of 64 KiB: a module that wants more to
	// begin with is refused, one that may grow beyond has its maximum lowered.
	// At most 65536; 0 means DefaultPages (8 MiB).
	Pages uint32
	// Table bounds each table's entries in the same way. There can be 16
	// tables. 0 means DefaultTable.
	Table uint32
	// Slice is how many ticks a call may run between two returns to Go, which
	// is what the garbage collector waits for. It does not change what a call
	// costs. 0 means DefaultSlice: a microsecond or a few of usual code, but some
	// 10 ms, on a crowded machine 30, of loads that each wait for memory, the
	// slowest code that a module can have (BenchmarkSlowest).
	Slice int64
	// StartFuel is the fuel that a new instance has for its start function and
	// whatever the host calls before it first sets the fuel. 0 means
	// DefaultStartFuel.
	StartFuel int64
	// Stack bounds how deep calls nest: a call of the module traps when the
	// bounds of the frames that are open come to more bytes, and a function that
	// alone has more is refused. The engine, which doubles its stack, then has at
	// most three times as many. At most MaxFuel, which leaves it to the engine's
	// own limit of some 100 MB; 0 means DefaultStack. Go's runtime starts and
	// collects garbage in 768 KiB.
	Stack int64
}

// Import names a function that a module may import.
type Import struct{ Module, Name string }

// String is "module.name".
func (i Import) String() string { return i.Module + "." + i.Name }

// Imports returns the default list: the two functions of cascade-policy/1, and
// those of WASI that the start-up code and runtime of Go's wasip1 port import
// in every program. The host answers the latter with stubs: no file, no network,
// no true clock. A guest that links package os (fmt does) wants more, and is
// refused.
func Imports() []Import {
	list := []Import{{"cascade_v1", "log"}, {"cascade_v1", "fail"}}
	for _, name := range [...]string{
		"args_get", "args_sizes_get", "clock_time_get", "environ_get", "environ_sizes_get",
		"fd_write", "poll_oneoff", "proc_exit", "random_get", "sched_yield",
	} {
		list = append(list, Import{"wasi_snapshot_preview1", name})
	}
	return list
}

// configError is what is wrong with a Config.
type configError string

func (e configError) Error() string { return "meter: " + string(e) }

// filled returns the config with its defaults in place, or says which field is
// out of range.
func (c Config) filled() (Config, error) {
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
		if *f.value == 0 {
			*f.value = f.def
		}
		// 2^27 is what the engine itself accepts of anything; it keeps sums far
		// from overflow.
		if *f.value < 0 || *f.value > 1<<27 {
			return c, configError(f.name + " must be from 1 to " + strconv.Itoa(1<<27) + ", or 0 for its default")
		}
	}
	if c.Pages == 0 {
		c.Pages = DefaultPages
	}
	if c.Table == 0 {
		c.Table = DefaultTable
	}
	if c.Slice == 0 {
		c.Slice = DefaultSlice
	}
	if c.StartFuel == 0 {
		c.StartFuel = DefaultStartFuel
	}
	if c.Stack == 0 {
		c.Stack = DefaultStack
	}
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
