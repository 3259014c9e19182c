// Package meter rewrites a WebAssembly module so that its calls are bounded and can be
// ended from outside.
//
// wazero compiles policies to machine code that the Go runtime cannot preempt: an
// endless loop in a guest would stop the garbage collector, and with it the process.
// Instrument therefore adds, before compilation, a deterministic count of work ("fuel"),
// regular returns to Go, and a switch that ends a call. It does not depend on the
// module's purpose, and runs nothing.
//
// # What is added
//
// Four mutable i64 globals, exported under the names FuelExport, BudgetExport,
// KillExport and StackExport, and one function, the checkpoint, which is not
// exported. All are appended after the module's own, so that no index changes.
// Before a call the host writes fuel and budget (see Split); after it, Left returns the
// rest. Any goroutine may set kill to a value other than 0: the call ends at its next
// checkpoint, and so does every later call.
//
// # Ticks
//
// The count is part of the contract: equal calls consume equal fuel on every machine,
// whatever Config.Slice is. A segment is the body of a function or of a loop, without
// the bodies of the loops inside it. Its weight is the number of its instructions. "else"
// and "end" count; a loop's "loop" belongs to the enclosing segment and its "end" to its
// own; and memory.grow, table.grow and ref.func, for which the engine leaves the compiled
// code, count GrowWeight. On entry to a function, and on each arrival at a loop, from
// above or by a branch, the code first pays
//
//	1 + weight / SegmentWeight  ticks
//
// and, before memory.fill, memory.copy and memory.init of n bytes, n / FillBytes more
// ticks; before table.fill, table.copy, table.init and table.grow of n entries,
// n / FillEntries. A call traps at the point where fuel and budget together fall below
// 0, before the code that it could not pay for; it has then run exactly the code that was
// paid for. The globals hold the rest at every point where the call can end, traps
// included.
//
// When the fuel is below 0, the checkpoint leaves the compiled code by "memory.grow 0",
// where Go can preempt. It traps if kill is set or the budget cannot cover the debt, and
// otherwise moves up to Config.Slice ticks from the budget to the fuel.
//
// Most time is spent in loops that contain no other loop. They do not call the
// checkpoint: they leave to an enclosing loop that calls it, see loop.go.
//
// # Stack
//
// The engine's stack grows with the open calls: a call with little fuel could nest
// thousands of large frames. So every function that calls another takes a bound of its
// frame (see Report) from the stack global on entry, and returns it on exit; below 0,
// the checkpoint traps. After a call that did not trap, the global has its initial value,
// so that the host never writes it. The bounds are part of Version; fuel does not depend
// on them.
//
// # Safety
//
// Invariant: no byte of the input has a meaning for the compiler that it does not have
// for this package. Instrument decodes every section that it knows, refuses others, and
// encodes the module again in the shortest encodings; only constants, names and data are
// copied. It checks every index against the original module, so that no instruction,
// export or segment can reach the appended globals and functions. An invalid module stays
// invalid, because the added instructions leave the stack unchanged. Types on the stack
// are not checked here; the engine's validation of the result checks them.
//
// Instrument accepts WebAssembly 2.0 with one memory and without vectors: no threads,
// SIMD, tail calls, exceptions, 64-bit or multiple memories, garbage collection or
// extended constants. Modules can only import functions, from a list. Custom sections are
// dropped, except function names, which appear in the stacks of traps; a malformed name
// section is dropped, too.
//
// # History
//
//   - cascade-meter/2 (2026-11): frames are bounded, the stack is counted.
//   - cascade-meter/3 (2026-11-21): inner loops leave to the loop that calls the
//     checkpoint. Fuel is unchanged, except that ref.func counted one. Bounds of frames
//     with loops are larger, by some 300 bytes for each loop, and an inner loop counts as
//     two in Merges.
package meter
