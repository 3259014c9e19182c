package vllm

import "testing"

// TestStock covers stock vLLM with its defaults.
func TestStock(t *testing.T) {
	engines := newEngines(t, 2, options{})
	t.Run("answers", func(t *testing.T) { testAnswers(t, newFleet(t, engines, nil)) })
	t.Run("openai-python", func(t *testing.T) { testPythonClient(t, newFleet(t, engines, nil)) })
	t.Run("openai-node", func(t *testing.T) { testNodeClient(t, newFleet(t, engines, nil)) })
	t.Run("vllm bench serve", func(t *testing.T) { testBench(t, newFleet(t, engines, nil)) })
	t.Run("drain", func(t *testing.T) { testDrain(t, newFleet(t, engines, nil)) })
}
