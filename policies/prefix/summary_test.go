package prefix

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestSummary measures how often a Summary finds steps that the Index does not contain, and
// checks that it finds all that it should, in caches from small ones to many times the largest
// that it contains all steps of.
func TestSummary(t *testing.T) {
	for _, c := range []struct {
		tokens policies.Tokens
		unit   policies.Tokens
		bytes  int // at most
	}{
		{0, 512, 0}, {512, 512, 8}, {20_000, 512, 64}, {1 << 20, 512, 2816}, {3 << 20, 1024, 4224}, {8 << 20, 2048, 8192}, {100 << 20, 32768, 8192},
	} {
		x := NewIndex(1<<20, 1)
		const prompt = 32768
		e := Stored{BlockTokens: 512}
		var roots []Hash
		for n := policies.Tokens(0); n < c.tokens; n += prompt {
			e.Root = Hash(n).Extend(9)
			roots = append(roots, e.Root)
			e.Tokens = make([]uint32, min(prompt, c.tokens-n))
			e.Hashes = e.Hashes[:0]
			for i := range len(e.Tokens) / 512 {
				e.Hashes = append(e.Hashes, uint64(e.Root)+uint64(i))
			}
			e.Tokens = e.Tokens[:len(e.Hashes)*512]
			x.Store(&e)
		}
		var s Summary
		x.Summarize(&s)
		if s.Unit() != c.unit || len(s.words)*8 > c.bytes || len(s.words)*8 > MaxSummaryBytes {
			t.Errorf("%v tokens: prefixes in units of %v and %d bytes, want %v and %d", c.tokens, s.Unit(), len(s.words)*8, c.unit, c.bytes)
		}
		ids := make([]uint32, prompt)
		for _, root := range roots {
			steps := AppendSteps(nil, root, ids)
			if got, want := s.MatchSteps(steps), x.MatchSteps(steps)/c.unit*c.unit; got < want {
				t.Fatalf("%v tokens: %v of a prompt are found, want %v", c.tokens, got, want)
			}
		}
		const trials = 200_000
		wrong, rng := 0, rand.New(rand.NewPCG(5, 18))
		for range trials {
			if s.MatchSteps([]Step{{Tokens: c.unit, Hash: Hash(rng.Uint64())}}) > 0 {
				wrong++
			}
		}
		t.Logf("%v tokens in units of %v: %d bytes, %.2f %% false positives", c.tokens, s.Unit(), len(s.words)*8, 100*float64(wrong)/trials)
		if wrong > trials/100 {
			t.Errorf("%v tokens: %.2f %% false positives, want 1 %% at most", c.tokens, 100*float64(wrong)/trials)
		}
	}
}

// TestChanges checks that what changes a Summary shows in Changes, and the rest does not.
func TestChanges(t *testing.T) {
	x, ids := NewIndex(100, 0), make([]uint32, 1024)
	before := x.Changes()
	if x.Add(0, ids[:256], 256); x.Changes() != before {
		t.Error("a block that is no step changes the summary")
	}
	x.Add(0, ids, 256)
	if after := x.Changes(); after == before {
		t.Error("two steps change no summary")
	} else if before = after; true {
		x.Add(0, ids, 256)
	}
	if x.Changes() != before {
		t.Error("steps that are known change the summary")
	}
	x.SetCapacity(2)
	if x.Changes() == before {
		t.Error("a step that was evicted changes no summary")
	}
}

// TestUnmarshal checks that what is no Summary of this version is refused and changes nothing.
func TestUnmarshal(t *testing.T) {
	x := NewIndex(100, 0)
	x.Add(1, make([]uint32, 2048), 512)
	var s, r Summary
	x.Summarize(&s)
	good, _ := s.AppendBinary(nil)
	other := bytes.Clone(good)
	other[0]++
	large := append([]byte{1, 0, 0xff, 0xff, 0, 0}, make([]byte, wordsOf(0xffff)*8)...)
	testkit.NoError(t, r.UnmarshalBinary(good))
	for _, c := range []struct {
		b    []byte
		want error
	}{{nil, ErrSummary}, {good[:5], ErrSummary}, {good[:len(good)-1], ErrSummary}, {append(bytes.Clone(good), 0), ErrSummary}, {other, ErrSummaryVersion}, {large, ErrSummary}, {[]byte{1, 99, 0, 0, 0, 0}, ErrSummary}} {
		if err := r.UnmarshalBinary(c.b); !errors.Is(err, c.want) {
			t.Errorf("%d bytes: %v, want %v", len(c.b), err, c.want)
		}
		if again, _ := r.AppendBinary(nil); !bytes.Equal(again, good) {
			t.Errorf("%d bytes: the refused summary replaced the former one", len(c.b))
		}
	}
}

// FuzzSummary checks that whatever is decoded is encoded as the same bytes, and can be asked.
func FuzzSummary(f *testing.F) {
	x := NewIndex(100, 0)
	var s Summary
	for range 3 {
		b, _ := s.AppendBinary(nil)
		f.Add(b)
		x.Add(0, make([]uint32, 8*512), 512)
		x.Summarize(&s)
		s.level++
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Summary
		if s.UnmarshalBinary(b) != nil {
			return
		}
		if again, err := s.AppendBinary(nil); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x is encoded as %x: %v", b, again, err)
		}
		if s.MatchSteps(AppendSteps(nil, 0, make([]uint32, 4096))); s.Unit() <= 0 || s.Tokens() < 0 {
			t.Errorf("%v tokens in units of %v", s.Tokens(), s.Unit())
		}
	})
}

// BenchmarkSummarize makes a Summary of an Index of 16 M tokens.
func BenchmarkSummarize(b *testing.B) {
	x, _ := filled(1 << 20)
	var s Summary
	b.ReportAllocs()
	for b.Loop() {
		x.Summarize(&s)
	}
}
