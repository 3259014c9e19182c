package kvevents_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// summary is an Index that writes down in short what it gets.
type summary struct{ lines []string }

func (r *summary) Store(e *prefix.Stored) {
	from := "a block"
	if !e.HasParent {
		from = "the root"
		if e.Root == prefix.Root("m", "", "tenant-a") {
			from = "the salt"
		}
	}
	r.lines = append(r.lines, fmt.Sprintf("store %d after %s, %d tokens", len(e.Hashes), from, len(e.Tokens)))
}

func (r *summary) Remove(e prefix.Removed) {
	r.lines = append(r.lines, fmt.Sprint("remove ", len(e.Hashes)))
}

func (r *summary) Clear() { r.lines = append(r.lines, "clear") }

// TestBatchesOfVLLM decodes the batches of stock vLLM that the emulator's encoder is tested with.
func TestBatchesOfVLLM(t *testing.T) {
	want := map[string]string{
		"one block":    "store 1 after the root, 32 tokens",
		"three blocks": "store 3 after the root, 96 tokens",
		"a block that decoding has filled, after a parent": "store 1 after a block, 32 tokens",
		"two blocks, of which the first has a salt":        "store 2 after the salt, 64 tokens",
		"two requests of one step":                         "store 1 after a block, 32 tokens; store 1 after a block, 32 tokens",
		"eviction before a store":                          "remove 1; store 3 after the root, 96 tokens",
		"eviction alone":                                   "remove 1",
		"evictions of several blocks":                      "remove 3; store 3 after the root, 96 tokens",
		"reset, then a store":                              "clear; store 1 after the root, 32 tokens",
		"reset with a running request":                     "clear; store 3 after the root, 96 tokens",
		"32-byte hashes: one block":                        "store 1 after the root, 32 tokens",
		"32-byte hashes: a parent":                         "store 1 after a block, 32 tokens",
	}
	d := kvevents.Decoder{Model: "m"}
	var name string
	for line := range strings.Lines(string(testkit.Must(os.ReadFile("../../engine/internal/kvpublisher/testdata/vllm-0.32.0.txt")))) {
		line = strings.TrimSpace(line)
		payload, err := hex.DecodeString(line)
		if err != nil || line == "" {
			name = line
			continue
		}
		testkit.NoError(t, d.Decode(payload))
		var got summary
		d.Apply(&got)
		if lines := strings.Join(got.lines, "; "); lines != want[name] {
			t.Errorf("%s: %s, want %s", name, lines, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not in the file: %q", want)
	}
}
