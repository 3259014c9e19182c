package model

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func vocabulary(t testing.TB) *Vocabulary {
	t.Helper()
	v, err := NewVocabulary()
	testkit.NoError(t, err)
	return v
}

// generate continues ids by n tokens, with all KV in one piece of memory, and flips one bit if flip
// is in range.
func generate(m *Model, ids []Token, n, flip int) []Token {
	const slot = 64
	mem := make([]byte, slot*(len(ids)+n))
	var d Digest
	for p, t := range ids {
		d = m.Fill(mem[p*slot:][:slot], d, t, p)
	}
	if flip >= 0 {
		mem[flip] ^= 1
		d = 0
		for p := range ids {
			d += Read(mem[p*slot:][:slot], p)
		}
	}
	var out []Token
	for range n {
		last := ids[len(ids)-1]
		next := m.Next(d, last, GoesOn)
		out = append(out, next)
		d = m.Fill(mem[len(ids)*slot:][:slot], d, next, len(ids))
		ids = append(ids[:len(ids):len(ids)], next)
	}
	return out
}

func TestContinuationDependsOnEveryByte(t *testing.T) {
	m := New("m", vocabulary(t))
	ids, err := m.Encode("the quick brown fox jumps over the lazy dog")
	testkit.NoError(t, err)
	same := func(a, b []Token) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	want := generate(m, ids, 8, -1)
	if !same(want, generate(m, ids, 8, -1)) {
		t.Fatal("not deterministic")
	}
	if same(want, generate(New("other", m.Vocabulary), ids, 8, -1)) {
		t.Error("another model continues alike")
	}
	for b := range 64 * len(ids) {
		if same(want, generate(m, ids, 8, b)) {
			t.Errorf("flipping byte %d changes nothing", b)
		}
	}
}

func TestGeneratedTextIsReadable(t *testing.T) {
	m := New("m", vocabulary(t))
	if got, want := len(m.words), len(strings.Fields(wordList)); got != want {
		t.Errorf("%d of the %d words are one token", got, want)
	}
	ids := generate(m, []Token{1}, 5000, -1)
	text := m.Decode(ids)
	if !utf8.ValidString(text) || strings.ContainsRune(text, utf8.RuneError) {
		t.Error("generated text has broken characters")
	}
	letters := 0
	for _, r := range text {
		if r >= 'a' && r <= 'z' || r == ' ' {
			letters++
		}
	}
	if share := float64(letters) / float64(len(text)); share < 0.9 {
		t.Errorf("only %.2f of the text is letters: %.80q", share, text)
	}
	pieces := 0
	for _, id := range ids {
		if !utf8.ValidString(m.Piece(id)) {
			pieces++
		}
	}
	if pieces == 0 {
		t.Error("no token is a part of a character")
	}
}

func TestNextEnds(t *testing.T) {
	m := New("m", vocabulary(t))
	ended := 0
	const n = 100_000
	for d := range Digest(n) {
		if m.Next(d*oddA, 1, MayEnd) == EndOfText {
			ended++
		}
		if m.Next(d*oddA, 1, GoesOn) == EndOfText {
			t.Fatal("a masked end was sampled")
		}
	}
	if want := n / meanOutput; ended < want/2 || ended > want*2 {
		t.Errorf("%d of %d ended, want about %d", ended, n, want)
	}
}

func FuzzEncodeDecode(f *testing.F) {
	v := vocabulary(f)
	for _, s := range []string{"", "hello world", "日本語 🌿 ᚠ", "<|endoftext|>", "a\x00b\r\n  \t", strings.Repeat("x", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return // prompts come from JSON and are valid UTF-8
		}
		ids, err := v.Encode(s)
		testkit.NoError(t, err)
		if got := v.Decode(ids); got != s {
			t.Errorf("decode(encode(%q)) = %q", s, got)
		}
		for _, id := range ids {
			if id >= EndOfText {
				t.Errorf("text encodes to special token %d", id)
			}
		}
	})
}

// The decoder returns the same text wherever the bytes are split.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte("a🌿b"), uint64(1))
	f.Add([]byte("\xf0\x9f\x8c a \x80\xff\xe9\xbe"), uint64(2))
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		want := string([]rune(string(in))) // one U+FFFD per broken byte
		rng := rand.New(rand.NewPCG(seed, 0))
		var d Decoder
		var out []byte
		for rest := string(in); rest != ""; {
			n := 1 + rng.IntN(len(rest))
			out = d.Append(out, rest[:n])
			rest = rest[n:]
			if !utf8.Valid(out) {
				t.Fatalf("%q is not valid UTF-8", out)
			}
		}
		got := string(d.Flush(out))
		// The number of U+FFFD for an invalid run may differ, but nothing else.
		squeeze := func(s string) string { return strings.ReplaceAll(s, "\ufffd", "") }
		if squeeze(got) != squeeze(want) || strings.ContainsRune(got, '\ufffd') != strings.ContainsRune(want, '\ufffd') {
			t.Errorf("cut differently: %q, want %q", got, want)
		}
	})
}
