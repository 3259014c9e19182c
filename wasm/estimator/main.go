// Command estimator is the length estimator that runs inside Envoy: a proxy-wasm module
// (ABI 0.2.1), built for GOOS=wasip1 with -buildmode=c-shared.
//
// It connects package lengthfilter to the proxy. It exports only the callbacks that it
// needs: a proxy calls every callback that a module exports, and a callback for response
// bodies would be called for every token of every stream. The proxy passes data through
// one reusable buffer, so that a request leaves no garbage.
//
// After a panic, a request continues without an estimate. If the module itself ends (out
// of memory, a trap), the request at hand gets status 503 from Envoy's worker; later
// requests pass, because the configuration must set FAIL_OPEN.
package main

func main() {}
