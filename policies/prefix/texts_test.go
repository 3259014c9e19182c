package prefix

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// tokenize is a tokenizer whose tokens have 1 to 8 bytes: how many depends on the bytes, so
// that different texts are differently dense. What follows a byte changes no token before it.
func tokenize(text []byte) (ids []uint32) {
	for len(text) > 0 {
		n := min(1+int(text[0]%8), len(text))
		id := uint32(n)
		for _, b := range text[:n] {
			id = id*31 + uint32(b)
		}
		ids, text = append(ids, id), text[n:]
	}
	return ids
}

// writeText makes text of one density: its tokens have about that many bytes.
func writeText(rng *rand.Rand, n, density int) []byte {
	text := make([]byte, n)
	for i := range text {
		text[i] = byte(rng.IntN(31)*8 + density)
	}
	return text
}

// learn has x learn a prompt.
func learn(x *Texts, root Hash, text []byte) []uint32 {
	ids := tokenize(text)
	x.Learn(NewText(root, text), AppendSteps(nil, root, ids), policies.Tokens(len(ids)))
	return ids
}

// TestTexts learns conversations that branch, and compares what is found of prompts with their
// true steps. A step may be wrong only after the place where the prompt leaves the known text,
// and not by more than the interpolation can err.
func TestTexts(t *testing.T) {
	var found, wrong, missed, possible int
	for seed := range uint64(testkit.Size(3, 100)) {
		rng := rand.New(rand.NewPCG(seed, 18))
		x := NewTexts(1 << 16)
		root := Root("m", "", "")
		system := writeText(rng, 6000, 3)
		talks := [][]byte{system}
		for range 60 {
			from := talks[rng.IntN(len(talks))]
			text := append(bytes.Clone(from), writeText(rng, 500+rng.IntN(12000), rng.IntN(8))...)
			steps, tokens, _ := x.Find(nil, NewText(root, text))
			ids := tokenize(text)
			want := AppendSteps(nil, root, ids)
			if tokens > policies.Tokens(len(ids)) && len(steps) > 0 && steps[len(steps)-1].Tokens > policies.Tokens(len(ids)) {
				t.Errorf("seed %d: %d tokens of %d are known", seed, tokens, len(ids))
			}
			before := policies.Tokens(0)
			for _, s := range steps {
				if s.Tokens <= before || s.Tokens%StepTokens != 0 {
					t.Fatalf("seed %d: step of %d tokens after %d", seed, s.Tokens, before)
				}
				before = s.Tokens
				if i := int(s.Tokens / StepTokens); i <= len(want) && want[i-1].Hash == s.Hash {
					found++
				} else {
					wrong++
				}
			}
			best := 0
			for _, b := range talks[1:] { // system alone was never learned
				best = max(best, len(AppendSteps(nil, root, tokenize(commonText(b, text)))))
			}
			possible += best
			missed += max(best-len(steps), 0)
			learn(x, root, text)
			talks = append(talks, text)
			if steps, _, _ := x.Find(nil, NewText(root+1, text)); len(steps) > 0 {
				t.Fatal("a text is known under another root")
			}
			// What was learned last is found, up to its last chunk.
			steps, tokens, _ = x.Find(nil, NewText(root, text))
			if n := len(ids) - int(tokens); n > 2048 {
				t.Errorf("seed %d: %d tokens of %d are found of a text that was learned", seed, tokens, len(ids))
			}
			for _, s := range steps {
				if want[s.Tokens/StepTokens-1].Hash != s.Hash {
					t.Errorf("seed %d: a wrong step of %d tokens in a text that was learned last", seed, s.Tokens)
				}
			}
		}
	}
	t.Logf("%d steps found of %d, %d missed, %d wrong", found, possible, missed, wrong)
	if wrong*20 > found || found*10 < possible*8 {
		t.Errorf("%d steps are right, %d wrong; %d were possible", found, wrong, possible)
	}
}

// commonText returns the text that two have in common.
func commonText(a, b []byte) []byte {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// TestTextsCapacity checks that the texts which were not asked for longest are forgotten, and
// that no text, however long, exceeds the capacity.
func TestTextsCapacity(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 18))
	x := NewTexts(20)
	a, b, c := writeText(rng, 8<<10, 2), writeText(rng, 8<<10, 2), writeText(rng, 8<<10, 2)
	learn(x, 0, a)
	learn(x, 0, b)
	x.Find(nil, NewText(0, a))
	learn(x, 0, c)
	find := func(text []byte) int {
		_, tokens, _ := x.Find(nil, NewText(0, text))
		return int(tokens) * 100 / len(tokenize(text))
	}
	if find(a) < 90 || find(c) < 90 || find(b) > 60 || x.Len() != 20 {
		t.Errorf("%d %%, %d %% and %d %% of three texts are known, %d KiB", find(a), find(b), find(c), x.Len())
	}
	long := writeText(rng, 100<<10, 2)
	if learn(x, 0, long); x.Len() != 20 || find(long) < 15 {
		t.Errorf("%d %% of a text that is too long are known, %d KiB", find(long), x.Len())
	}
	if x.Clear(); x.Len() != 0 || find(long) != 0 {
		t.Error("something is known after Clear")
	}
	if learn(x, 0, a); find(a) < 90 {
		t.Error("nothing is learned after Clear")
	}
}

// TestTextsAllocs checks that a Texts that is full allocates no memory but for each Text.
func TestTextsAllocs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 18))
	x, text := NewTexts(100), writeText(rng, 64<<10, 3)
	ids := tokenize(text)
	steps := AppendSteps(nil, 0, ids)
	found := make([]Step, 0, len(steps)+1)
	n := byte(0)
	run := func() {
		text[20<<10] = n
		n++
		x.Learn(NewText(0, text), steps, policies.Tokens(len(ids)))
		found, _, _ = x.Find(found[:0], NewText(0, text))
	}
	for range 20 {
		run()
	}
	if allocs := testing.AllocsPerRun(100, run); allocs > 2.1 {
		t.Errorf("%v allocations", allocs)
	}
}

// BenchmarkFind finds the steps of a prompt of 64 KiB.
func BenchmarkFind(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 18))
	x, text := NewTexts(1<<16), writeText(rng, 64<<10, 3)
	learn(x, 0, text)
	var steps []Step
	b.ReportAllocs()
	for b.Loop() {
		steps, _, _ = x.Find(steps[:0], NewText(0, text))
	}
}

// TestTextsContradiction checks that two prompts whose ids differ within their common text
// lower what is known of it, and that neither raises it again.
func TestTextsContradiction(t *testing.T) {
	common := make([]byte, 2*ChunkBytes)
	prompt := func(last byte) ([]byte, []Step) {
		ids := make([]uint32, 2000)
		for i := 400; i < len(ids); i++ { // by its length, 1,000 of them are in the common text
			ids[i] = uint32(last)
		}
		return append(bytes.Clone(common), bytes.Repeat([]byte{last}, 2*ChunkBytes)...), AppendSteps(nil, 0, ids)
	}
	x := NewTexts(100)
	for n := range 4 {
		text, steps := prompt(byte(1 + n%2))
		x.Learn(NewText(0, text), steps, 2000)
		found, tokens, _ := x.Find(nil, NewText(0, common))
		if n == 0 && (len(found) != 1 || tokens != 1000) {
			t.Errorf("after one prompt: %v, %d tokens", found, tokens)
		}
		if n > 0 && (len(found) != 0 || tokens >= StepTokens) {
			t.Errorf("after %d prompts that contradict each other: %v, %d tokens", n+1, found, tokens)
		}
		if found, tokens, _ := x.Find(nil, NewText(0, text)); len(found) == 0 || found[len(found)-1] != steps[len(steps)-1] || tokens != 2000 {
			t.Errorf("of prompt %d: %v, %d tokens", n, found, tokens)
		}
	}
}

// TestTextsLength checks the length of a prompt of which not all is known.
func TestTextsLength(t *testing.T) {
	text := make([]byte, 12*ChunkBytes+12)
	for i := range text {
		text[i] = byte(i / 100)
	}
	ids := make([]uint32, 3000) // 500 for each of the first six chunks
	x := NewTexts(100)
	x.Learn(NewText(0, text[:6*ChunkBytes]), AppendSteps(nil, 0, ids), 3000)
	for n, want := range map[int]policies.Tokens{ChunkBytes - 1: 0, ChunkBytes: 500, 4*ChunkBytes + 512: 2250, 6 * ChunkBytes: 3000, 9 * ChunkBytes: 4500, 12 * ChunkBytes: 6000, 12*ChunkBytes + 1: 0} {
		if _, _, all := x.Find(nil, NewText(0, text[:n])); all != want {
			t.Errorf("%d bytes: %d tokens, want %d", n, all, want)
		}
	}
}
