// Package processes holds the tests of a whole fleet whose parts are processes
// of their own: the real binary, real signals, real sockets and, where there is
// one, a real Envoy.
//
// No package imports it, and it tests no component by itself: what one
// package promises is tested there, and what a fleet does inside one process in
// cmd/internal/inprocess. What is left for here is what only processes can show: that they
// are replaced, killed and stopped, and that no client notices.
//
// Every text that a client reads is compared with an oracle's, an engine of the
// same model without other requests: a token that is lost, doubled or computed
// from wrong KV makes another text.
package processes
