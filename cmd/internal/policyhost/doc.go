// Package policyhost joins the slots of a host (wasm/slothost) to the control plane:
// what the fleet wants comes from xDS, the modules' bytes by their digests, and
// what became of them goes into the reports.
//
// It decides nothing about a module: slots do on each host, and the control plane
// does for the fleet. The same Node serves a migrator, whose wants come over a
// stream, and a control plane, which asks itself; Control is what a control plane
// has besides: whom it admits, and what stands between a module's plan and the
// fleet.
//
// # Invariants
//
//  1. What comes is refused (NACK) only for a reason that would be the same
//     tomorrow; never because something has to be fetched.
//  2. What is taken back acts at once, whatever is being fetched.
//  3. Bytes are used only if they have the digest that was asked for.
package policyhost
