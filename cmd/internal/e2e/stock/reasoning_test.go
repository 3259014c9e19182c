package stock

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// beginThought and endThought are the ids of the marks of reasoning in the thinking model.
const endThought, beginThought = 3, 4

// thinkingModel makes the tests' model with a tokenizer that has marks of reasoning, in place of two tokens that no
// text of the tests contains, and returns its folder.
func thinkingModel(t testing.TB) string {
	t.Helper()
	from, to := filepath.Join(installed(t), model), t.TempDir()
	for _, file := range testkit.Must(os.ReadDir(from)) {
		if file.Name() != "tokenizer.json" {
			testkit.NoError(t, os.Symlink(filepath.Join(from, file.Name()), filepath.Join(to, file.Name())))
		}
	}
	var tokenizer map[string]any
	testkit.NoError(t, json.Unmarshal(testkit.Must(os.ReadFile(filepath.Join(from, "tokenizer.json"))), &tokenizer))
	vocabulary := tokenizer["model"].(map[string]any)["vocab"].(map[string]any)
	for _, m := range []struct {
		id          float64
		token, mark string
	}{{endThought, "!", "</think>"}, {beginThought, `"`, "<think>"}} {
		if vocabulary[m.token] != m.id {
			t.Fatalf("the id of %q is %v, not %v", m.token, vocabulary[m.token], m.id)
		}
		delete(vocabulary, m.token)
		vocabulary[m.mark] = m.id
		tokenizer["added_tokens"] = append(tokenizer["added_tokens"].([]any), map[string]any{"id": m.id, "content": m.mark,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false})
	}
	testkit.NoError(t, os.WriteFile(filepath.Join(to, "tokenizer.json"), testkit.Must(json.Marshal(tokenizer)), 0o600))
	return to
}

// testReasoning hands chats over whose engine splits the answer into reasoning and content: while they reason, so that
// the reasoning ends at the target, and back after that.
func testReasoning(t *testing.T, urls [2]string) {
	p := handofftest.New(t, model, urls, patient)
	reasoning, content := 0, 0
	for i := 0; reasoning < 3 || content < 3; i++ {
		if i == 20 {
			t.Fatalf("%d handoffs of reasoning and %d of content\n%s", reasoning, content, &p.Log)
		}
		moves := p.Play(handofftest.Stream{At: i % 2, Text: prompt(500+i, 300), Output: 4000, Moves: []int{20, 250}, After: 50, More: map[string]any{
			"chat_template_kwargs": map[string]any{"thinking": true},
			"logit_bias":           map[string]int{fmt.Sprint(endThought): 2, fmt.Sprint(beginThought): -100},
		}})
		for _, m := range moves {
			switch {
			case m.Err != nil || !m.Handoff:
				t.Logf("%+v", m)
			case m.Reasoning:
				reasoning++
			default:
				content++
			}
		}
	}
	t.Logf("%d handoffs of reasoning and %d of content", reasoning, content)
}
