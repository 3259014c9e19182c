package trace

import (
	_ "embed" // for the fitted coefficients
	"encoding/json"
	"fmt"
)

// fitted holds the generators fitted to the public traces, as
// TestFitOfPublicTraces writes them: coefficients only, no request of a trace.
// testdata/fit.txt shows how close they come.
//
//go:embed mixes.json
var fitted []byte

// shareGPT is the generator fitted to the lengths of ShareGPT, which have no times.
//
//go:embed sharegpt.json
var shareGPT []byte

// Names lists the shipped mixes, the default first.
func Names() []string {
	return []string{"mixed", "chat", "conversation", "assistant", "agent", "sharegpt"}
}

// Named returns a shipped generator, without Requests, Duration and Seed:
//
//   - "chat": short prompts, fitted to azure2023_conv of
//     Azure/AzurePublicDataset (CC-BY-4.0);
//   - "conversation": long-document conversations with shared prefixes, fitted
//     to the FAST'25 conversation trace of kvcache-ai/Mooncake (Apache-2.0);
//   - "assistant": the requests of that trace up to 8,192 tokens: turns of a chat whose prompts share
//     a system prompt;
//   - "agent": loops of tool calls whose context grows to 64Ki tokens, fitted to the sessions of
//     callanjfox/kv-cache-tester (Apache-2.0). When a session begins is a choice, and so is that all
//     share the tools' definitions, 12Ki tokens;
//   - "mixed": mostly chat with some long conversations, both as fitted. The
//     proportion is a choice, not a measurement;
//   - "sharegpt": the lengths of 58,787 conversations of ShareGPT, the paper's data set
//     (efeslab/Nanoflow, Apache-2.0), with Poisson arrivals, one per second.
func Named(name string) (Generator, bool) {
	all := make(map[string]Generator)
	if err := json.Unmarshal(fitted, &all); err != nil {
		panic(fmt.Sprintf("internal error: mixes.json: %v", err))
	}
	if name == "sharegpt" {
		var g Generator
		if err := json.Unmarshal(shareGPT, &g); err != nil {
			panic(fmt.Sprintf("internal error: sharegpt.json: %v", err))
		}
		return g, true
	}
	if name != "mixed" {
		g, ok := all[name]
		return g, ok
	}
	chat, conversation := all["chat"], all["conversation"]
	short, long := chat.Classes[0], conversation.Classes[0]
	short.Share, long.Share = mixedChat, 1-mixedChat
	return Generator{
		Name:    "mixed",
		Source:  chat.Source + "; " + conversation.Source,
		Rate:    chat.Rate,
		GapCV:   chat.GapCV,
		Swing:   chat.Swing,
		Classes: []Class{short, long},
	}, true
}

// mixedChat is the share of chat in "mixed".
const mixedChat = 0.9
