// Package length estimates, from the bytes of an OpenAI request, the values that a
// length-routed fleet routes by: the number of prompt tokens and the model's name.
//
// It is Cascade's only estimator, and it is pure, so that the embedded proxy, the
// ext_proc service and a Wasm sandbox can all use it. It is neither a tokenizer nor a
// JSON library: it builds no values, rejects no request and never needs the whole body
// at once. Invariant: the same body gives the same Count, in bounded memory and without
// allocating, whatever its bytes and however they are divided into chunks.
package length

// Headers between proxy, estimator, routes and client. Names are in lower case, as
// in HTTP/2 and Envoy.
const (
	// TokensHeader carries the estimated prompt length in tokens, in decimal.
	TokensHeader = "x-cascade-tokens"
	// ModelHeader carries the model's name. It is the Endpoint Picker Protocol's name, so
	// other gateways understand it.
	ModelHeader = "x-gateway-model-name"
	// StageHeader, in the response, is the stage that served the request.
	StageHeader = "x-cascade-stage"
	// EpochHeader, in the response, is the epoch of the plan that routed the request.
	EpochHeader = "x-cascade-epoch"
	// RefusedHeader marks a replica's response for which proxies send the request to another
	// replica. Its value is RefusedUnbegun or RefusedLost.
	RefusedHeader = "x-cascade-refused"
	// RefusedUnbegun says that no engine was lost with the request: none has got it, or the replica
	// stops and has therefore ended it.
	RefusedUnbegun = "1"
	// RefusedLost says that an engine has got the request and was lost with it.
	RefusedLost = "lost"
	// AttemptHeader, in a proxy's request, is the number of the attempt, from 1. It is Envoy's
	// name; without it a replica never marks a request as RefusedLost for a proxy.
	AttemptHeader = "x-envoy-attempt-count"
	// ControlPrefix is the prefix of all headers that only Cascade may set on a request.
	ControlPrefix = "x-cascade-"
)

// IsControlHeader reports whether a request header controls the fleet, so that a client's
// value must be removed at the trust boundary. The name must be in lower case.
func IsControlHeader(name string) bool {
	return name == ModelHeader || len(name) >= len(ControlPrefix) && name[:len(ControlPrefix)] == ControlPrefix
}
