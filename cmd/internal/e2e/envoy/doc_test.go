// Package envoy compares a real Envoy, with the configuration of Cascade's own server, with what stands in for it.
//
// The three ways by which Envoy learns the length of a request span several packages: the tests require the same
// answers from each estimator, and a benchmark compares them. TestEnvoyShares compares what the replicas of a stage get
// with what the simulator's proxy (engine/sim) gives them: by weights, and while one of them drains. There
// the test's own listener leads to the stage's cluster, so that only the balancing is compared.
package envoy
