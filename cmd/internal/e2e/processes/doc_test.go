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
//
// Some tests attack a fleet with raw bytes on every port. Their cases are text, in testdata: an attack, the ports that
// get it, and the outcome at each: the statuses of all answers on the attacker's connection. Whatever must not get
// through has the word "evil" in it, so that an outcome can say where the engine saw it. Ports are those of a replica's
// front end (front, and peer for other migrators), its KV transport (kv), the embedded proxy, Envoy, the control plane
// (xds, admin), and the admin servers of the migrator and the proxy. "make attack" runs them, and the tests of other packages whose names begin with TestAttack.
package processes
