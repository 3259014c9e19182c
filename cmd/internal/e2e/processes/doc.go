// Package processes tests a whole fleet whose components are separate processes: the real binary,
// real signals, real sockets and, where available, a real Envoy.
//
// No package imports it, and it tests no component by itself: the tests of a package cover what
// that package promises, and cmd/internal/inprocess covers a fleet within one process. This package
// covers what only processes can show: they are replaced, killed and suspended, and no client sees
// an effect.
//
// The tests compare every text that a client reads with an oracle's, an engine of the same model
// without other requests: a token that is lost, duplicated or computed from wrong KV changes the
// text.
package processes
