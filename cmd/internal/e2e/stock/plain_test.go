package stock

import "testing"

// TestStock covers stock vLLM without a KV connector: what clients read, and a drain.
func TestStock(t *testing.T) {
	engines := newEngines(t, 2, options{})
	t.Run("answers", func(t *testing.T) { testAnswers(t, newFleet(t, engines, nil), vllmRules(), "") })
	t.Run("openai-python", func(t *testing.T) { testPythonClient(t, newFleet(t, engines, nil)) })
	t.Run("openai-node", func(t *testing.T) { testNodeClient(t, newFleet(t, engines, nil)) })
	t.Run("vllm bench serve", func(t *testing.T) { testBench(t, newFleet(t, engines, nil)) })
	t.Run("drain", func(t *testing.T) { testDrain(t, newFleet(t, engines, nil)) })
}

// TestSeveralTokensAChunk drains replicas whose engines send several tokens in an event: they send every eighth token
// only, or they guess tokens from the prompt.
func TestSeveralTokensAChunk(t *testing.T) {
	for name, args := range map[string][]string{
		"stream interval 8":  {"--stream-interval", "8"},
		"n-gram speculation": {"--speculative-config", `{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}`},
	} {
		t.Run(name, func(t *testing.T) { testDrain(t, newFleet(t, newEngines(t, 2, options{args: args}), nil)) })
	}
}
