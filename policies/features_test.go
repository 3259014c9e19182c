package policies_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// TestMovable is the table in full: every feature pins, and says so by name.
func TestMovable(t *testing.T) {
	if got := policies.Movable(policies.Request{ID: "a", Input: 5, Output: 3}); got != policies.NotPinned || got.String() != "movable" {
		t.Errorf("a plain request: %v", got)
	}
	for f, want := range map[policies.Features]string{
		policies.Choices:        "several choices",
		policies.Prompts:        "several prompts",
		policies.Echo:           "echo",
		policies.PromptLogprobs: "prompt logprobs",
		policies.Structured:     "structured output",
		policies.ForcedTools:    "forced tool call",
		policies.Tools:          "tool calls",
		policies.Penalties:      "output penalties",
		policies.MinTokens:      "min_tokens",
		policies.BadWords:       "bad_words",
		policies.ThinkingBudget: "thinking budget",
		policies.Seed:           "seed",
		policies.Stop:           "stop strings",
		policies.Multimodal:     "multimodal",
		policies.HiddenTokens:   "hidden tokens",
		policies.Unreadable:     "unreadable",
	} {
		if got := policies.Movable(policies.Request{Features: f}); got == policies.NotPinned || got.String() != want {
			t.Errorf("bit %#x: %v, want %q", uint32(f), got, want)
		}
	}
	if got := policies.PinReasonOf(policies.Unreadable << 1); got != policies.PinReasonOf(policies.Unreadable) {
		t.Errorf("a feature of a newer version: %v", got)
	}
	if got := policies.PinReasonOf(policies.Seed | policies.Stop); got != policies.PinReasonOf(policies.Seed) {
		t.Errorf("two features: %v, want the lower one", got)
	}
	if !(policies.Seed | policies.Stop).Has(policies.Stop) || policies.Seed.Has(policies.Stop) {
		t.Error("Has")
	}
	if got := policies.PinReason(200).String(); got != "unknown reason" {
		t.Errorf("got %q", got)
	}
}
