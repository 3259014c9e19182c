// Package policyhost connects the policy slots of a host (wasm/slothost) to the
// control plane: it passes on the slots' specs, which come by xDS, the modules, which the
// control plane serves by their digests, and the slots' states, which reports have.
//
// It decides nothing about a module: the slots of each host do, and the control plane
// for the fleet. A Host serves a migrator, which gets specs over a stream, as well as
// a control plane, which applies its own. Control is the rest that a control plane
// needs: the admission of modules, and the checks of their plans.
//
// # Invariants
//
//  1. A spec is refused (NACK) only for a permanent reason, never because a module has
//     to be fetched.
//  2. A rollback takes effect at once, whatever is being fetched.
//  3. Bytes are used only if they have the requested digest.
package policyhost
