// Package opa lets a host of cascade-policy/1 run Rego rules that OPA compiled to
// WebAssembly, by "opa build -t wasm -e cascade/plan/deny" or "cascade policy test --build".
// Such modules decide the kind guard.
//
// OPA's modules have their own interface, which the exported global opa_wasm_abi_version
// identifies before the module runs. Adapt replaces their imported memory by a memory of
// their own, so that the limits of all modules apply to them. A Guest implements the
// functions of cascade-policy/1 that they lack: cs_arena_v1 allocates the arena in their
// heap; cs_configure_v1 parses a JSON object that the rules find under data; and
// cs_guard_v1 writes the frame's plans into their memory as JSON, evaluates the rules,
// and writes their denial into the frame. The rest of the host (meter, limits, watchdog,
// recording, replay) treats such a module like any other.
//
// The alternative was to link a guest with these functions to OPA's code at build time.
// It would have avoided this package, but every author would have needed a linker for
// WebAssembly, or a JSON encoder in hand-written instructions. As it is, a module is
// byte for byte the output of OPA's own tool: its digest can be compared, and it can be
// tested elsewhere.
//
// # Input and output of rules
//
// The input is what Writer writes, with the frame's time as "now", in seconds. Of several
// denials, the one with the lowest code is the answer. If the module has the entry point
// cascade/plan/warn, its warnings are logged, unless the plan is denied.
//
// A control plane evaluates a site's rules in such a module, too (package rego), by
// Guest.Evaluation: there the input is any document, and all findings are returned.
//
// There are three differences from OPA's evaluator. An error in a built-in function, such
// as a division by zero, makes its rule undefined, where the evaluator fails; OPA's
// compiler works like that. A set that is converted to text has its elements in another
// order, unless they are sorted, and json.marshal escapes fewer characters. And
// functions that OPA leaves to its host (sprintf, regular expressions and others) do not
// exist: Load refuses a module that needs one, and names the function.
//
// # Invariants
//
//  1. Nothing waits, reads a clock, or keeps anything between calls except memory
//     regions: equal calls of equal instances behave the same.
//  2. The host's work for a call costs the call fuel; the frame bounds the memory that it
//     touches.
//  3. An answer that is not a set of findings is Failed, not a permission.
package opa
