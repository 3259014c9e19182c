package dialect

import "strings"

// Feature is a set of what a request asks for that decides whether it can be
// streamed, assembled or moved. What may move is decided elsewhere; here the
// facts are told.
type Feature uint32

// The features. Each names the fields that set it.
const (
	Choices        Feature = 1 << iota // n, best_of above 1, use_beam_search
	Prompts                            // several prompts in one body
	Echo                               // echo
	Logprobs                           // logprobs, top_logprobs
	PromptLogprobs                     // prompt_logprobs
	Tools                              // tools, functions, a tool_choice other than "none"
	Structured                         // response_format other than text, structured_outputs, guided_*
	Penalties                          // presence_penalty, frequency_penalty
	OutputCounts                       // min_tokens, bad_words, thinking_token_budget: count output tokens only
	Seed                               // seed
	Stop                               // stop
	Multimodal                         // message parts other than text, prompt_embeds
	HiddenTokens                       // include_reasoning: false: the engine withholds token ids
	Odd                                // a field of an unexpected type, or one that changes the answer's shape
)

// exactOnly are the features whose unstreamed answer cannot be put together
// from a stream, byte for byte.
const exactOnly = Choices | Prompts | Echo | Logprobs | PromptLogprobs | Tools | Odd

var featureNames = [...]string{"choices", "prompts", "echo", "logprobs", "prompt-logprobs", "tools", "structured",
	"penalties", "output-counts", "seed", "stop", "multimodal", "hidden-tokens", "odd"}

// Has reports whether any feature of g is in f.
func (f Feature) Has(g Feature) bool { return f&g != 0 }

// String lists the features by name, "none" for the empty set.
func (f Feature) String() string {
	if f == 0 {
		return "none"
	}
	var names []string
	for i, name := range featureNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}
