package length

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestSipHash contains results of the authors' reference implementation: the key and the
// inputs are 00 01 02 …
func TestSipHash(t *testing.T) {
	var in []byte
	want := map[int]uint64{0: 0x726fdb47dd0e0e31, 1: 0x74f839c593dc67fd, 7: 0xab0200f58b01d137, 8: 0x93f5f5799a932462, 15: 0xa129ca6149be45e5}
	for n := range 16 {
		for cut := range n + 1 {
			h := newSipHash(0x0706050403020100, 0x0f0e0d0c0b0a0908)
			h.write(in[:cut])
			h.write(in[cut:])
			if w, ok := want[n]; ok && h.sum() != w {
				t.Fatalf("%d bytes, cut at %d: %x, want %x", n, cut, h.sum(), w)
			}
		}
		in = append(in, byte(n))
	}
	h := newSipHash(1, 2)
	h.writeUint64(0x0807060504030201)
	g := newSipHash(1, 2)
	g.write([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	if h.sum() != g.sum() {
		t.Error("a number is not its eight bytes, the lowest first")
	}
}

// oraclePrefix collects the text that prefix keys cover, and the model and cache_salt, by
// reading the body's tokens one by one. salt is nil without one.
func oraclePrefix(data []byte) (prompt []byte, salt *string) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	// value reads a value. path holds the keys that lead to it, "[]" for elements.
	var value func(path []string)
	value = func(path []string) {
		token, err := d.Token()
		if err != nil {
			return
		}
		where := strings.Join(path, ".")
		for _, k := range []string{"prompt", "messages", "input"} {
			if path != nil && path[0] == k {
				where = strings.Join(append([]string{"P"}, path[1:]...), ".")
			}
		}
		if where == "cache_salt" {
			salt = nil
		}
		switch v := token.(type) {
		case json.Delim:
			for d.More() {
				next := "[]"
				if v == '{' {
					key, err := d.Token()
					if err != nil {
						return
					}
					next = key.(string)
				}
				value(append(slices.Clone(path), next))
			}
			d.Token()
		case string:
			switch where {
			case "cache_salt":
				salt = &v
			case "P", "P.[]", "P.[].content", "P.[].content.[]", "P.[].content.[].text":
				prompt = append(prompt, v...)
			}
		case json.Number:
			if where == "P.[]" || where == "P.[].[]" {
				id := int64(0)
				if !strings.ContainsAny(v.String(), "-.eE") {
					n, err := strconv.ParseInt(v.String(), 10, 64)
					if id = n; err != nil {
						id = 1<<63 - 1
					}
				}
				prompt = append(prompt, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
			}
		}
	}
	value(nil)
	return prompt, salt
}

var testPrefixes = Prefixes{Depth: 1024, Secret: PrefixSecret{1, 2, 3}}

// oracleKey computes a body's key from the oracle's text.
func oracleKey(data []byte, p Prefixes) (PrefixKey, bool) {
	prompt, salt := oraclePrefix(data)
	depth := p.Depth
	if depth == 0 || depth > int64(len(prompt)) || !json.Valid(data) {
		return 0, false
	}
	level := uint64(0)
	for d := int64(MinPrefixDepth); d <= depth; d *= 2 {
		level++
	}
	sum := func(p []byte) uint64 {
		h := newSipHash(textKey0, textKey1)
		h.write(p)
		return h.sum()
	}
	_, model := oracle(data)
	h := newSipHash(littleEndian(p.Secret[:8]), littleEndian(p.Secret[8:]))
	h.writeUint64(sum(prompt[:depth]))
	h.writeUint64(level)
	if salt != nil {
		h.writeUint64(sum([]byte(*salt)))
	} else {
		h.writeUint64(0)
	}
	h.write([]byte(model))
	return PrefixKey(h.sum()), true
}

func keyOf(p Prefixes, chunks ...[]byte) (PrefixKey, bool) {
	var s Scanner
	s.HashPrefix(p.Depth)
	for _, c := range chunks {
		s.Write(c)
	}
	return p.Key(&s)
}

// checkKey compares the key with the oracle's, and with itself on the body in pieces.
func checkKey(t *testing.T, data []byte, p Prefixes) {
	t.Helper()
	key, ok := keyOf(p, data)
	if count, _ := scan(data); utf8.Valid(data) && !count.Malformed {
		if want, wantOK := oracleKey(data, p); key != want || ok != wantOK {
			t.Fatalf("key %v, %v; want %v, %v; body %q", key, ok, want, wantOK, data)
		}
	} else if ok && count.Malformed {
		t.Fatalf("a malformed body has key %v: %q", key, data)
	}
	for cut := 1; cut < len(data); cut += 1 + len(data)/40 {
		if k, o := keyOf(p, data[:cut], data[cut:]); k != key || o != ok {
			t.Fatalf("cut at %d: key %v, %v; whole: %v, %v", cut, k, o, key, ok)
		}
	}
	if k, o := keyOf(p, slices.Collect(slices.Chunk(data, 1))...); k != key || o != ok {
		t.Fatalf("byte by byte: key %v, %v; whole: %v, %v", k, o, key, ok)
	}
}

// longBodies are bodies whose prompts are long enough for a key.
func longBodies() (out []string) {
	text := strings.Repeat(`Ünicode, "quoted"\n and 😀; \ud83d\ude00 \ud83d`, 40)
	text = strings.ReplaceAll(text, `"`, `\"`)
	idList := strings.TrimSuffix(strings.Repeat("17, 4294967296,0,-3,1.5,99999999999999999999,", 60), ",")
	for _, f := range []string{
		`{"model":"m","prompt":"%s"}`, `{"prompt":["%s","x"]}`, `{"messages":[{"role":"system","content":"%s"},{"content":"%s"}],"model":"m"}`,
		`{"messages":[{"content":[{"type":"text","text":"%s"},{"image_url":{"url":"%s"}},"%s"]}],"cache_salt":"\ud83dx\ud83d\ude00"}`,
		`{"system":"%s","messages":[{"content":"%s"}],"tools":["%s"]}`, `{"input":"%s","instructions":"%s","cache_salt":1}`,
		`{"instructions":[{"text":"%s"}],"input":"%s","cache_salt":"a","cache_salt":"b"}`, `{"cache_salt":"a","prompt":"%s","cache_salt":null}`,
		`{"cache_salt":"","prompt":"%s","prompt":"%s"}`, `{"prompt":"%s"`, `{"x":{"prompt":"%s"},"prompt":"short"}`,
	} {
		out = append(out, strings.ReplaceAll(f, "%s", text))
	}
	// Halves of pairs, each followed by something else.
	halves := strings.Repeat(`\ud83d\n\ud83d\ud83d\ude00\ud83d\u0041\ude00\ud83d`, 40)
	out = append(out, `{"prompt":"`+halves+`"}`, `{"cache_salt":"`+halves+`","input":"`+text+`"}`)
	return append(out, `{"prompt":[`+idList+`]}`, `{"prompt":[[1,2],[`+idList+`]]}`, `{"prompt":[`+strings.Repeat("1,2, 3,", 200)+`4]}`)
}

func TestPrefixOracle(t *testing.T) {
	for _, b := range longBodies() {
		for _, depth := range []int64{0, MinPrefixDepth, 1024, MaxPrefixDepth} {
			checkKey(t, []byte(b), Prefixes{Depth: depth, Secret: testPrefixes.Secret})
		}
	}
	r := rand.New(rand.NewPCG(11, 12))
	for range 200 {
		text := strings.Repeat("x", r.IntN(600))
		checkKey(t, []byte(`{"prompt":"`+text+`","messages":`+document(r, 1)+`,"cache_salt":`+document(r, 1)+`,"input":`+document(r, 1)+`}`), testPrefixes)
	}
}

func FuzzPrefix(f *testing.F) {
	for _, b := range longBodies() {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkKey(t, data, testPrefixes) })
}

// TestPrefixKey checks what a key depends on.
func TestPrefixKey(t *testing.T) {
	body := func(model, salt, prompt string) []byte {
		b, err := json.Marshal(map[string]string{"model": model, "cache_salt": salt, "prompt": prompt})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	text := strings.Repeat("0123456789abcdef", 64) // the depth
	base, ok := keyOf(testPrefixes, body("m", "s", text))
	if !ok {
		t.Fatal("no key")
	}
	for name, c := range map[string]struct {
		p    Prefixes
		body []byte
		same bool
	}{
		"what follows the depth": {testPrefixes, body("m", "s", text+"more"), true},
		"another model":          {testPrefixes, body("n", "s", text), false},
		"another salt":           {testPrefixes, body("m", "t", text), false},
		"model and salt swapped": {testPrefixes, body("s", "m", text), false},
		"a byte of the text":     {testPrefixes, body("m", "s", text[1:]+"x"), false},
		"another secret":         {Prefixes{1024, PrefixSecret{9}}, body("m", "s", text), false},
		"another depth":          {Prefixes{512, testPrefixes.Secret}, body("m", "s", text), false},
	} {
		if k, ok := keyOf(c.p, c.body); !ok || (k == base) != c.same {
			t.Errorf("%s: key %v, %v, of the first one %v", name, k, ok, base)
		}
	}
	// A shorter prompt may have nothing but what all prompts begin with.
	for _, n := range []int{MinPrefixDepth - 1, 512, 1023} {
		if k, ok := keyOf(testPrefixes, body("m", "s", text[:n])); ok {
			t.Errorf("a prompt of %d bytes has key %v", n, k)
		}
	}
	if _, ok := keyOf(Prefixes{}, body("m", "s", text)); ok {
		t.Error("there is a key at depth 0")
	}
	if got := PrefixKey(0xab).String(); got != "00000000000000ab" {
		t.Errorf("the header is %q", got)
	}
}

func TestPrefixDepth(t *testing.T) {
	for n, want := range map[int64]int64{-1: 0, 0: 0, 1: 256, 256: 256, 511: 256, 512: 512, 5000: 4096, 1 << 16: 1 << 16, 1 << 17: 1 << 17, 1 << 40: 1 << 17} {
		if got := PrefixDepth(n); got != want {
			t.Errorf("PrefixDepth(%d) = %d, want %d", n, got, want)
		}
	}
	if levelOf(MaxPrefixDepth) != prefixLevels || levelOf(0) != 0 || levelOf(1<<40) != prefixLevels {
		t.Error("the number of levels does not match the bounds")
	}
}

func TestPrefixSecret(t *testing.T) {
	want := PrefixSecret{0, 1, 0xab, 15: 0xff}
	if got, err := ParsePrefixSecret(want.Hex()); got != want || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "00", strings.Repeat("0", 31), strings.Repeat("g", 32), strings.Repeat("+1", 16)} {
		if _, err := ParsePrefixSecret(bad); err == nil || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestPrefixSecretIsNotShown renders a secret, and what contains it, in all ways that do not ask for its digits.
func TestPrefixSecretIsNotShown(t *testing.T) {
	p := Prefixes{Depth: 256, Secret: PrefixSecret{0xca, 0xfe, 15: 0xba}}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "secret", p.Secret, "prefixes", p, "in", &p)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("json", "secret", p.Secret, "prefixes", p, "in", &p)
	text, err := json.Marshal(map[string]any{"secret": p.Secret, "prefixes": p})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(p), fmt.Sprintf("%v %+v %#v", p, p, p), fmt.Sprintf("%v %#v %s", p.Secret, p.Secret, &p.Secret), log.String(), string(text)} {
		low := strings.ToLower(s)
		if strings.Contains(low, "cafe") || strings.Contains(low, "0xca") || strings.Contains(low, "202 254") || strings.Contains(low, "202,254") || !strings.Contains(s, "not shown") {
			t.Errorf("shown: %s", s)
		}
	}
}

func TestPrefixAllocatesNothing(t *testing.T) {
	var s Scanner
	out := make([]byte, 0, 16)
	for _, body := range [][]byte{chat(64 << 10), ids(64 << 10), []byte(longBodies()[3])} {
		if n := testing.AllocsPerRun(20, func() {
			s.Reset()
			s.HashPrefix(MaxPrefixDepth)
			s.Write(body[:len(body)/2])
			s.Write(body[len(body)/2:])
			key, ok := testPrefixes.Key(&s)
			if !ok {
				t.Fatal("no key")
			}
			out = key.AppendText(out[:0])
		}); n != 0 {
			t.Errorf("%v allocations, want none", n)
		}
	}
}

// TestPromptDigest checks which prompts are taken for equal ones.
func TestPromptDigest(t *testing.T) {
	digest := func(body string) uint64 {
		var s Scanner
		s.HashPrefix(MinPrefixDepth)
		s.Write([]byte(body))
		return s.PromptDigest()
	}
	long := strings.Repeat("x", 2*MinPrefixDepth)
	base := digest(`{"prompt":"` + long + `"}`)
	for body, equal := range map[string]bool{
		`{"model":"m","n":2,"prompt":"` + long + `"}`: true, `{"prompt":"` + long + `x"}`: false, `{"prompt":"y` + long[1:] + `"}`: false, `{"prompt":"x"}`: false,
	} {
		if (digest(body) == base) != equal {
			t.Errorf("%.40s…: equal is %v, want %v", body, !equal, equal)
		}
	}
	if a, b := digest(`{"prompt":[1,2]}`), digest(`{"prompt":[1,3]}`); a == b || a == 0 {
		t.Error("lists of ids are taken for equal ones")
	}
	if digest(`{"prompt":""}`) != 0 || digest(`{}`) != 0 {
		t.Error("a body without text has a digest")
	}
}
