package policies

import "math/bits"

// Features is a set of what a request asks for that ties it to the engine that
// began it. A bit says that the engine keeps state for the request which a
// second engine, given the same token ids, would not have. Who reads the
// request sets the bits; a front that keeps such a state itself, or has made it
// irrelevant (min_tokens already reached, say), leaves the bit out.
type Features uint32

// The features. Values are part of what replicas tell each other: new ones are
// added at the end.
const (
	// Choices: n or best_of above 1, beam search. Several sequences share a
	// prompt, and the beams' scores stay in the engine.
	Choices Features = 1 << iota
	// Prompts: several prompts in one request.
	Prompts
	// Echo: the prompt is part of the answer.
	Echo
	// PromptLogprobs: prompt_logprobs. They come with the first leg only.
	PromptLogprobs
	// Structured: a grammar, JSON schema, choice or regular expression guides
	// decoding. Its automaton starts at the root and is not advanced over a
	// prompt.
	Structured
	// ForcedTools: tool_choice "required" or a named tool, which is a grammar.
	ForcedTools
	// Tools: tools are offered and may be called. The engine's parser looks at
	// new text only, so that a call which straddles the cut is lost.
	Tools
	// Penalties: presence or frequency penalty. They count output tokens, which
	// a second engine takes for prompt. (The repetition penalty counts both.)
	Penalties
	// MinTokens: min_tokens not reached yet.
	MinTokens
	// BadWords: bad_words, matched against output tokens only.
	BadWords
	// ThinkingBudget: a limit on reasoning tokens, counted in the output only.
	ThinkingBudget
	// Seed: a seed for sampling. The second engine's generator starts anew, and
	// the client asked for a repeatable answer. Greedy decoding uses none.
	Seed
	// Stop: stop strings that the engine matches. One that straddles the cut
	// would be missed. Stop token ids are harmless.
	Stop
	// Multimodal: parts other than text, or prompt embeddings. Token ids do not
	// say what they were.
	Multimodal
	// HiddenTokens: the engine does not tell the ids of all tokens it
	// generates, for instance those of hidden reasoning.
	HiddenTokens
	// Unreadable: a field of an unexpected type or an unknown extension, so
	// that nobody can say what the request needs.
	Unreadable
)

// Has reports whether any feature of g is in f.
func (f Features) Has(g Features) bool { return f&g != 0 }

// PinReason says why a request must stay where it is. The zero value is Movable's
// answer for one that may move. Reason i+1 stands for feature bit i.
type PinReason uint8

// NotPinned is the reason of a request that nothing holds.
const NotPinned PinReason = 0

// reasons is the table: one line per feature bit, in the order of the bits.
var reasons = [...]string{
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

// PinReasonOf returns the reason that stands for a set of features: that of its
// lowest bit, MayMove for the empty set. A bit that this version does not know
// is Unreadable: a peer's newer feature pins.
func PinReasonOf(f Features) PinReason {
	switch n := bits.TrailingZeros32(uint32(f)); {
	case f == 0:
		return NotPinned
	case n >= len(reasons):
		return PinReason(len(reasons))
	default:
		return PinReason(n + 1)
	}
}

// Movable tells why a request that has begun must stay on its replica, or
// MayMove. It is the one table of what a move would change beyond batch
// numerics; a move itself may still fail. It is for the ways of moving that
// give another engine token ids; an engine that hands over its whole state has
// no such limits.
func Movable(r Request) PinReason { return PinReasonOf(r.Features) }

// String names the reason, for tables and metrics; "movable" for none.
func (r PinReason) String() string {
	switch {
	case r == NotPinned:
		return "movable"
	case int(r) <= len(reasons):
		return reasons[r-1]
	}
	return "unknown reason"
}
