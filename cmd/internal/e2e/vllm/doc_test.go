// Package vllm tests a fleet whose engines are stock vLLM: two instances on the CPU, real migrators, a real control
// plane and a real Envoy.
//
// No package imports it. A test starts engines with newEngines, which all of its subtests share, because a start takes
// a minute, and Cascade in front of them with newFleet. The engines serve a tiny model of seeded random weights whose
// next token depends on the whole prefix; greedy answers are the same at every instance, so that a direct call shows
// what a client must read.
//
// The tests of real engines run with "make test-vllm" only. They install vLLM into .cache once, by setup/install.sh, and are skipped
// where it does not run.
package vllm
