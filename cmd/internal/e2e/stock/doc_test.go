// Package stock tests fleets whose engines are stock vLLM or stock SGLang: two instances on the CPU, real migrators, a
// real control plane and a real Envoy.
//
// No package imports it. A test starts engines with newEngines or newSGLangs, which all of its subtests share, because a
// start takes a minute, and Cascade in front of them with newFleet. The engines serve a tiny model of seeded random
// weights whose next token depends on the whole prefix; greedy answers are the same at every instance, so that a direct
// call shows what a client must read.
//
// The tests of real engines run with "make test-vllm" and "make test-sglang" only. They install the engine into .cache
// once, by setup/install.sh or sglang/install.sh, and are skipped where it does not run.
package stock
