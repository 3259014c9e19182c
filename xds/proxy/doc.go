// Package proxy is an Envoy-style HTTP data plane that is configured only by xDS: it
// uses the listeners, route tables, clusters and endpoints of the control plane that
// serves real Envoys.
//
// It has no TLS to endpoints, no callouts, no Wasm and no health checks. If the listener
// has the ECDS filter of a length estimator, it estimates natively. It differs from
// Envoy on purpose in three ways: an edited listener ends no stream, local replies are
// JSON, and an ejection ends on time rather than at the next sweep.
//
// Invariant: no change of configuration affects a request that has been routed. A
// request is retried only before the first byte of its response, and only if no
// endpoint can have started to work on it.
package proxy
