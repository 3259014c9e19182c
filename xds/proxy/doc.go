// Package proxy is an Envoy-style HTTP data plane that knows nothing but what
// xDS tells it: listeners, route tables, clusters and endpoints of the same
// control plane that serves real Envoys.
//
// It has no TLS, no callouts, no Wasm and no health checks of its own. Where
// the listener holds the slot of a length estimator it estimates natively. It
// differs from Envoy on purpose in three places: an edited listener cuts no
// stream, local replies are JSON, and an ejection ends on time rather than at
// the next sweep.
//
// The invariant: no change of configuration touches a request that has been
// routed. A request is retried only before the first byte of its answer, and
// only where no endpoint can have begun to work on it.
package proxy
