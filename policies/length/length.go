// Package length turns the bytes of an OpenAI request into the two things a
// length-routed fleet routes by: how many tokens the prompt has, about, and
// which model it names.
//
// It is the one estimator of Cascade, pure, so that it can live in the
// embedded proxy, behind ext_proc and inside a Wasm sandbox alike. It is not
// a tokenizer and not a JSON library: it never builds a value, never rejects
// a request and never needs the whole body at once. The invariant it keeps:
// whatever the bytes and however they are cut into chunks, the same body gives
// the same Count in bounded memory, without allocating.
package length

// Headers between the edge, the estimator, the routes and the client. Names
// are in lower case, as HTTP/2 and Envoy hold them.
const (
	// TokensHeader carries the estimated prompt length in tokens, in decimal.
	TokensHeader = "x-cascade-tokens"
	// ModelHeader carries the model's name; the Endpoint Picker Protocol
	// gives it this name, so that other gateways understand it.
	ModelHeader = "x-gateway-model-name"
	// StageHeader tells the client which stage served it.
	StageHeader = "x-cascade-stage"
	// EpochHeader tells the client which plan routed it.
	EpochHeader = "x-cascade-epoch"
	// RefusedHeader marks a replica's answer that says nothing about the request:
	// no token was produced, and another replica can serve it. Proxies retry on
	// it.
	RefusedHeader = "x-cascade-refused"
	// ControlPrefix begins every header that only Cascade itself may set on a
	// request.
	ControlPrefix = "x-cascade-"
)

// IsControlHeader reports whether a request header steers the fleet, so that a value
// that a client sent must be removed at the trust boundary. The name must be
// in lower case.
func IsControlHeader(name string) bool {
	return name == ModelHeader || len(name) >= len(ControlPrefix) && name[:len(ControlPrefix)] == ControlPrefix
}
