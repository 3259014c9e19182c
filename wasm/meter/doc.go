// Package meter rewrites a WebAssembly module so that it cannot run away.
//
// The engine that runs our policies compiles them to machine code which the Go
// runtime cannot preempt: an endless loop in a guest would stop the garbage
// collector and with it the process. Instrument therefore adds, before
// compilation, a deterministic count of work ("fuel"), a regular way back into
// Go, and a switch that ends a call from outside. It knows nothing of what the
// module is for, and it runs nothing.
//
// # What is added
//
// Four mutable i64 globals, exported under the names FuelExport, BudgetExport,
// KillExport and StackExport, and one function, the checkpoint, which is not
// exported. All are appended behind the module's own, so that no index changes.
// Before a call the host writes fuel and budget (see Split); afterwards Left of
// the two is what remains. Any goroutine may set kill to a value other than 0:
// the call ends at its next checkpoint, and so does every later one.
//
// # What a tick is
//
// The count is part of the contract: equal calls burn equal fuel on every
// machine, whatever Config.Slice is. A segment is a function's body, or a
// loop's, without the bodies of the loops inside it. Its weight is the number
// of its instructions, where "else" and "end" count too, a loop's "loop" belongs
// to the segment around it and its "end" to its own, and memory.grow, table.grow
// and ref.func, for which the engine leaves the compiled code, count GrowWeight.
// Whoever enters a function, or arrives at a loop from above or by a branch, first
// pays
//
//	1 + weight / SegmentWeight  ticks
//
// and before memory.fill, memory.copy and memory.init of n bytes, n / FillBytes
// ticks more; before table.fill, table.copy, table.init and table.grow of n
// entries, n / FillEntries. A call whose fuel and budget together fall below 0
// traps there, before what it could not pay for; it has then run exactly what
// was paid for. What is left is in the globals at every point where the call can
// end, by a trap, too.
//
// Whenever the fuel is below 0 the checkpoint leaves the compiled code by
// "memory.grow 0", where Go can preempt; it traps when kill is set or the
// budget cannot cover the debt, and else moves up to Config.Slice ticks from
// the budget to the fuel.
//
// Loops that have no loop in them are what time goes into. They call no checkpoint:
// they leave to one around them, which loop.go describes.
//
// # What stack is
//
// The engine's stack grows with the calls that are open, and by far more than
// memory it is the engine's to grow: a call with little fuel could nest thousands
// of large frames. So every function that calls another takes a bound of its frame
// (see Report) from the stack global when it is entered, and gives it back when it
// returns; below 0, the checkpoint traps. After a call that did not trap all of
// it is back, so that the host never writes it. What the bounds are is part of
// Version, too; fuel does not depend on them.
//
// # Why a module cannot cheat
//
// The invariant is that no byte of the input means something to the compiler
// that it did not mean to this package. Instrument decodes every section that
// it knows, refuses what it does not, and writes the module anew in shortest
// encodings; nothing is copied but constants, names and data. Every index is
// checked against the original module, so that no instruction, export or
// segment can reach what was appended. A module that was invalid stays invalid:
// the added instructions take nothing from the stack and leave nothing on it.
// Types on the stack are not checked here; the engine's own validation does
// that, on the result.
//
// Accepted is WebAssembly 2.0 with one memory and without vectors: no threads,
// SIMD, tail calls, exceptions, 64-bit or several memories, garbage collection
// or extended constants. Only functions can be imported, from a list. Custom
// sections are dropped, save the function names, which traps are printed with;
// a malformed name section is dropped, too.
//
// # History
//
//   - cascade-meter/2 (2026-11): frames are bounded, stack is counted.
//   - cascade-meter/3 (2026-11-21): inner loops leave to their checkpoint; fuel is
//     what it was, but for ref.func, which counted one. Bounds of frames with loops
//     are larger, by some 300 bytes for each, and an inner loop counts as two among
//     merges.
package meter
