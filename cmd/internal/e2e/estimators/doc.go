// Package estimators holds what can only be tested across the folders: the three
// ways by which an Envoy learns the length of a request, on a real Envoy that has
// its configuration from Cascade's own server, each with the same answers; and
// the benchmark that puts them side by side.
package estimators
