// Package opa lets a host of cascade-policy/1 run rules in Rego that OPA
// compiled into WebAssembly: "opa build -t wasm -e cascade/plan/deny", or
// "cascade policy build". They decide the kind guard.
//
// OPA's modules have an interface of their own. They are recognised by its sign,
// the exported global opa_wasm_abi_version, before anything of them runs; then
// Adapt gives them a memory of their own instead of the imported one, so that
// what bounds every module bounds them, and a Guest stands in for the functions
// of cascade-policy/1 that they lack: cs_arena_v1 keeps room in their heap,
// cs_configure_v1 takes a JSON object that the rules find under data, and
// cs_guard_v1 writes the frame's plans into their memory as JSON, evaluates, and
// writes what the rules deny into the frame. All else in the host, the meter, the
// limits, the watch, recordings and replays, is not aware of it.
//
// The other way, to link at build time a guest with the same functions to OPA's
// code, would have spared the host this package, and asked every author for a
// linker of WebAssembly, or for a program that renders JSON in hand-written
// instructions. So, a module is what OPA's own tool writes, byte for byte: its
// digest can be compared, and it can be tested elsewhere.
//
// # What rules see and say
//
// The document of package rego/document, the same bytes that OPA's evaluator gets
// on a control plane, with the frame's time as "now", in seconds. Of several
// denials the one with the lowest code answers. Warnings, where the module has
// the entry point cascade/plan/warn, are logged, unless the plan is denied.
//
// Three things differ from OPA's own evaluator. An error in a built-in function,
// such as a division by zero, leaves its rule undefined, where the evaluator
// fails; that is how OPA compiles. A set that is made into a text has its elements
// in another order, unless they are sorted, and json.marshal escapes fewer
// characters. And functions that OPA leaves to its host (sprintf, regular
// expressions' and others') are not there: a module that needs one is refused
// when it is loaded, by name.
//
// # Invariants
//
//  1. Nothing here waits, reads a clock or keeps anything from call to call but
//     rooms: equal calls of equal instances do the same.
//  2. What the host does for a call costs the call fuel; how much memory it may
//     touch is bounded by the frame.
//  3. An answer that is no set of findings is Failed, not a permission.
package opa
