// Package estimators tests the three ways by which an Envoy learns the length of a request, which
// span several packages. The tests run a real Envoy with the configuration of Cascade's own server,
// and require the same answers from each estimator. A benchmark compares them.
package estimators
