// Command estimator is the length estimator that Envoy runs itself: a
// proxy-wasm module (ABI 0.2.1), built for GOOS=wasip1 with
// -buildmode=c-shared.
//
// It is package filter and the calls between it and the proxy. It exports only
// what it needs: a proxy calls every callback that a module has, and one for
// the parts of an answer would be called for every token of every stream. What
// the proxy hands over goes through one buffer that is used again, so that a
// request leaves no garbage.
//
// A panic costs one request its estimate: it goes on as if there were no
// estimator. What ends the module itself (no memory, a trap) costs Envoy's worker
// the one request that it met, with status 503; FAIL_OPEN, which the
// configuration must say, has those behind it go on.
package main

func main() {}
