// Package client is a delta xDS client that behaves like Envoy: one aggregated
// stream, wildcard clusters and listeners, and everything they refer to by name
// (endpoints, route tables, extension configs).
//
// It decodes what a length-routed fleet needs into plain structs and refuses,
// by NACK with the field's name, what it would otherwise silently ignore and
// route wrongly. It is not a general xDS client: no regular expressions, no
// weighted clusters, no TLS contexts, no scoped routes.
//
// A migrator uses it too, for Plans and Replicas alone: a Config with Conn (the
// connection that its load reports use), the cluster of observers, and a Watcher
// that keeps the newest snapshot for a goroutine of its own. The example of
// Watcher is all of it. Most updates are new endpoint weights, which neither
// reads, at most once a second; to read both costs 25 µs for 16 replicas and
// 20 ms for 10,000 (BenchmarkPlansAndReplicas).
//
// The invariant: a Snapshot is immutable and complete. Every cluster in it has
// its endpoints or has given up waiting for them, every listener its route
// table; a bad resource never replaces a good one.
package client
