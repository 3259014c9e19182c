// Package proxy is the embedded proxy: an HTTP server in front of a fleet that follows the plan
// of its control plane (package routing) and picks replicas as the endpoint picker does, by
// length, prefix and load. Stock Envoys route by the same plan.
//
// It serves the public API only, removes headers that only Cascade may set, estimates lengths
// natively, and repeats a request on another replica while no response has begun.
//
// Invariants: no change of the plan affects a request that has been routed. A request is
// repeated only before the first byte of its response: always if no replica can have started it,
// and otherwise as often as the replicas allow, which announce by a 102 (Processing) that they
// work on the last attempt.
package proxy
