// Package routing follows the plan of a control plane: a Client keeps one delta ADS stream
// for the resource cascade.v1.Routing and for the configs of policy slots, and passes every
// change to a Watcher. Migrators, endpoint pickers and embedded proxies use it.
//
// Invariants: a Snapshot is immutable. An invalid resource never replaces a valid one: the
// client refuses it with a NACK that names the field and the rule, and keeps the last one,
// also while no control plane is reachable. An ACK means that the Watcher has the resource.
//
// A plan is one resource, so that a follower never sees half of a change. Envoys and gRPC
// clients, which cannot follow it, have the same plan as listeners, routes, clusters and
// endpoints.
package routing
