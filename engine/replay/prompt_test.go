package replay

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tiktoken-go/tokenizer"

	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

func text(t testing.TB, w *words, r trace.Request, index int) string {
	t.Helper()
	var s string
	testkit.NoError(t, json.Unmarshal(w.appendText(nil, r, index), &s))
	return s
}

// The prompt has exactly as many tokens as the trace specifies.
func TestPromptLength(t *testing.T) {
	w := newWords()
	for _, encoding := range []tokenizer.Encoding{tokenizer.Cl100kBase, tokenizer.O200kBase} {
		codec, err := tokenizer.Get(encoding)
		testkit.NoError(t, err)
		for i, n := range []policies.Tokens{1, 2, 7, 8, 9, 511, 512, 513, 520, 521, 1024, 20000} {
			s := text(t, w, trace.Request{Input: n, Prefix: []uint64{3}}, i)
			if got, err := codec.Count(s); err != nil || got != int(n) {
				t.Errorf("%s counts %d tokens in a prompt of %d (%v)", encoding, got, n, err)
			}
			var ids []int
			if err := json.Unmarshal(appendIDs(nil, trace.Request{Input: n}, i), &ids); err != nil || len(ids) != int(n) {
				t.Errorf("%d ids in a prompt of %d (%v)", len(ids), n, err)
			}
			for _, id := range ids {
				if id < firstID || id >= vocabulary {
					t.Fatalf("id %d", id)
				}
			}
		}
	}
}

func TestBytesPerToken(t *testing.T) {
	w := newWords()
	low, high, sum := math.Inf(1), 0.0, 0.0
	const n = 400
	for i := range n {
		ratio := float64(len(w.appendText(nil, trace.Request{Input: 500}, i))-2) / 500
		low, high, sum = min(low, ratio), max(high, ratio), sum+ratio
	}
	if mean := sum / n; mean < 4 || mean > 5 || low > 4.2 || high < 5 {
		t.Errorf("bytes per token: mean %.2f, %.2f … %.2f", sum/n, low, high)
	}
}

// Equal ids give equal blocks at equal positions; all other blocks differ.
func TestPrefixesAreShared(t *testing.T) {
	w := newWords()
	a := trace.Request{Input: 1500, Prefix: []uint64{1, 2, 3}}
	b := trace.Request{Input: 1600, Prefix: []uint64{1, 2, 4, 5}}
	block := func(s string, i int) string {
		fields := strings.Fields(s)
		return strings.Join(fields[512*i:min(512*(i+1), len(fields))], " ")
	}
	x, y := text(t, w, a, 0), text(t, w, b, 1)
	if block(x, 0) != block(y, 0) || block(x, 1) != block(y, 1) {
		t.Error("equal ids give different blocks")
	}
	if block(x, 2) == block(y, 2) || block(x, 0) == block(x, 1) {
		t.Error("different ids give equal blocks")
	}
	seen := make(map[string]string)
	for i := range 2000 {
		for _, r := range []trace.Request{{Input: 20}, {Input: 20, Prefix: []uint64{uint64(i)}}, {Input: 20, Prefix: []uint64{uint64(i) << 30}}} {
			s, name := text(t, w, r, i), fmt.Sprint(i, r.Prefix)
			if other, ok := seen[s]; ok && i > 0 {
				t.Fatalf("%s and %s have one text", name, other)
			}
			seen[s] = name
		}
	}
}
