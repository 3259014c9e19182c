package policies

import "math/bits"

// Features is a set of request features that pin a request to the engine that
// started it. A bit means that the engine keeps state for the request which a
// second engine, given the same token ids, would not have. The parser of the
// request sets the bits; a front end that keeps such state itself, or knows that
// it no longer matters (min_tokens already reached, say), clears the bit.
type Features uint32

// The features. The values are part of the wire format between migrators: new ones
// are added at the end.
const (
	// Choices: n or best_of above 1, beam search. Several sequences share a
	// prompt, and the beams' scores stay in the engine.
	Choices Features = 1 << iota
	// Prompts: several prompts in one request.
	Prompts
	// Echo: the prompt is part of the answer.
	Echo
	// PromptLogprobs: prompt_logprobs. Only the first leg returns them.
	PromptLogprobs
	// Structured: a grammar, JSON schema, choice or regular expression guides
	// decoding. A second engine starts its automaton at the root and does not
	// advance it over a prompt.
	Structured
	// ForcedTools: tool_choice "required" or a named tool, which is a grammar.
	ForcedTools
	// Tools: tools are offered and may be called. The engine's parser sees only new
	// text, so a call that straddles the splice is lost.
	Tools
	// Penalties: presence or frequency penalty. They count output tokens, which a
	// second engine treats as prompt. (The repetition penalty counts both.)
	Penalties
	// MinTokens: min_tokens not reached yet.
	MinTokens
	// BadWords: bad_words, matched against output tokens only.
	BadWords
	// ThinkingBudget: a limit on reasoning tokens, counted in the output only.
	ThinkingBudget
	// Seed: a seed for sampling. The second engine's generator starts again at the
	// seed, and the client asked for a repeatable answer. Greedy decoding uses none.
	Seed
	// Stop: stop strings that the engine matches. One that straddles the splice
	// would be missed. Stop token ids are harmless.
	Stop
	// Multimodal: parts other than text, or prompt embeddings. Token ids do not
	// reproduce them.
	Multimodal
	// HiddenTokens: the engine does not return the ids of all tokens it generates,
	// for instance of hidden reasoning.
	HiddenTokens
	// Unreadable: a field of an unexpected type or an unknown extension, so what
	// the request needs is unknown.
	Unreadable
)

// Has reports whether any feature of g is in f.
func (f Features) Has(g Features) bool { return f&g != 0 }

// PinReason says why a request must stay on its replica. The zero value means that
// it may move. PinReason i+1 stands for feature bit i.
type PinReason uint8

// NotPinned is the PinReason of a request that may move.
const NotPinned PinReason = 0

// pinReasonNames has one name per feature bit, in the order of the bits.
var pinReasonNames = [...]string{
	"several choices",
	"several prompts",
	"echo",
	"prompt logprobs",
	"structured output",
	"forced tool call",
	"tool calls",
	"output penalties",
	"min_tokens",
	"bad_words",
	"thinking budget",
	"seed",
	"stop strings",
	"multimodal",
	"hidden tokens",
	"unreadable",
}

// PinReasonOf returns the reason for a set of features: that of its lowest bit, or
// NotPinned for the empty set. A bit that this version does not know counts as
// Unreadable, so a newer feature of a peer pins the request.
func PinReasonOf(f Features) PinReason {
	switch n := bits.TrailingZeros32(uint32(f)); {
	case f == 0:
		return NotPinned
	case n >= len(pinReasonNames):
		return PinReason(len(pinReasonNames))
	default:
		return PinReason(n + 1)
	}
}

// Movable returns why a request that has started must stay on its replica, or
// NotPinned. It covers everything that a migration would change beyond batch
// numerics; the migration itself may still fail. It applies to migrations that
// give the other engine token ids; an engine that transfers its whole state has
// no such limits.
func Movable(r Request) PinReason { return PinReasonOf(r.Features) }

// String names the reason, for tables and metrics; "movable" for none.
func (r PinReason) String() string {
	switch {
	case r == NotPinned:
		return "movable"
	case int(r) <= len(pinReasonNames):
		return pinReasonNames[r-1]
	}
	return "unknown reason"
}
