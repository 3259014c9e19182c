// Package client is a delta xDS client that behaves like Envoy: one aggregated stream,
// wildcard subscriptions for clusters and listeners, and by-name subscriptions for
// what they refer to (endpoints, route tables, extension configs).
//
// It decodes what a length-routed fleet needs into plain structs. A field that it would
// otherwise ignore and route wrongly is refused with a NACK that names the field. It is
// not a general xDS client: no regular expressions, no weighted clusters, no TLS
// contexts, no scoped routes.
//
// A migrator uses it only for ReadPlans and ReadReplicas: a Config with Conn (the
// connection of its load reports), the cluster of observers, and a Watcher that keeps
// the newest snapshot for another goroutine. The example of Watcher shows all of it.
// Most updates change only endpoint weights, which neither function reads, at most once
// a second; reading both costs 25 µs for 16 replicas and 20 ms for 10,000
// (BenchmarkPlansAndReplicas).
//
// Invariant: a Snapshot is immutable and complete. Every cluster in it has its
// endpoints, or its wait for them has timed out; every listener has its route table; an
// invalid resource never replaces a valid one.
package client
