package sign

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

var (
	module = []byte("\x00asm\x01\x00\x00\x00")
	now    = time.Unix(1_763_721_600, 0)
)

// key returns the n-th key of the tests, which is always the same.
func key(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

func public(n byte) ed25519.PublicKey { return key(n).Public().(ed25519.PublicKey) }

var (
	configuration = []byte(`{"weight": 3}`)
	golden        = []byte("what it answers")
)

func statement() Statement {
	return Statement{
		Fleet: DefaultFleet, Digest: lifecycle.Sum(module), ABI: abi.Name, Name: "my-refiner", Version: "1.2.0-rc.1",
		Grants:   []Grant{{Kind: abi.Refine, Fuel: 5_000_000, Micros: 20_000, Pages: 128}, {Kind: abi.Guard}},
		NotAfter: 1_790_000_000, Generation: 1_763_721_600,
		Configuration: SumOf(configuration), Golden: SumOf(golden),
	}
}

func signed(t testing.TB, s Statement, keys ...byte) File {
	f := File{Statement: s}
	if s.Golden == SumOf(golden) {
		f.Golden = golden
	}
	for _, n := range keys {
		var err error
		if f, err = Sign(f, key(n)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestGolden pins the canonical text and the file: existing signatures must stay valid.
func TestGolden(t *testing.T) {
	f := signed(t, statement(), 1, 2)
	file := testkit.Must(f.Encode())
	for name, got := range map[string][]byte{"testdata/statement.txt": f.Statement.Canonical(), "testdata/golden.wasm.sig": file} {
		testkit.CompareGolden(t, name, got) // other bytes break every signature out there
	}
	back, err := Decode(file)
	if err != nil || !reflect.DeepEqual(back, f) {
		t.Errorf("decoded %+v, %v", back, err)
	}
}

func TestThreshold(t *testing.T) {
	ring := Ring{Fleet: DefaultFleet, Keys: []ed25519.PublicKey{public(1), public(2), public(3)}, Threshold: 2}
	for _, c := range []struct {
		keys []byte
		want string
	}{
		{[]byte{1, 3}, ""},
		{[]byte{3, 2, 1}, ""},
		{[]byte{1, 2, 9}, ""}, // the signature of an unknown key is ignored
		{[]byte{2}, "signed by 1 keys"},
		{[]byte{2, 8, 9}, "signed by 1 keys"},
		{nil, "signed by 0 keys"},
	} {
		s, err := Verify(signed(t, statement(), c.keys...), module, configuration, ring, now)
		if c.want == "" && (err != nil || !reflect.DeepEqual(s, statement())) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("keys %v: %v, want %q", c.keys, err, c.want)
		}
	}
}

// TestOneKeyCountsOnce checks a file in which one key's signature appears under two key IDs.
func TestOneKeyCountsOnce(t *testing.T) {
	ring := Ring{Fleet: DefaultFleet, Keys: []ed25519.PublicKey{public(1), public(2)}, Threshold: 2}
	f := signed(t, statement(), 1)
	f.Signatures = append(f.Signatures, f.Signatures[0])
	if _, err := Verify(f, module, configuration, ring, now); err == nil {
		t.Error("the same signature twice is two")
	}
	f.Signatures[1].Key = IDOf(public(2))
	if _, err := Verify(f, module, configuration, ring, now); err == nil {
		t.Error("a signature under another key's name is that key's")
	}
	if err := (Ring{Fleet: DefaultFleet, Keys: []ed25519.PublicKey{public(1), public(1)}, Threshold: 2}).Validate(); err == nil {
		t.Error("a ring may hold a key twice")
	}
}

// TestEveryFieldIsSigned changes each field of a signed file in turn.
func TestEveryFieldIsSigned(t *testing.T) {
	ring := Ring{Fleet: DefaultFleet, Keys: []ed25519.PublicKey{public(1)}, Threshold: 1}
	changes := map[string]func(*Statement){
		"digest":        func(s *Statement) { s.Digest[31]++ },
		"abi":           func(s *Statement) { s.ABI = "cascade-policy/2" },
		"name":          func(s *Statement) { s.Name += "x" },
		"version":       func(s *Statement) { s.Version = "1.2.0" },
		"kind":          func(s *Statement) { s.Grants[1].Kind = abi.Place },
		"less kinds":    func(s *Statement) { s.Grants = s.Grants[:1] },
		"fuel":          func(s *Statement) { s.Grants[0].Fuel++ },
		"micros":        func(s *Statement) { s.Grants[0].Micros = 0 },
		"pages":         func(s *Statement) { s.Grants[0].Pages *= 2 },
		"not after":     func(s *Statement) { s.NotAfter++ },
		"generation":    func(s *Statement) { s.Generation++ },
		"configuration": func(s *Statement) { s.Configuration[0]++ },
		"golden":        func(s *Statement) { s.Golden[0]++ },
		"fleet":         func(s *Statement) { s.Fleet = "other" },
	}
	fields := reflect.TypeFor[Statement]().NumField() - 1 + reflect.TypeFor[Grant]().NumField() + 1
	if len(changes) != fields {
		t.Errorf("%d changes for %d fields: add the new field here and to Canonical", len(changes), fields)
	}
	for name, change := range changes {
		f := signed(t, statement(), 1)
		change(&f.Statement)
		if _, err := Verify(f, module, configuration, ring, now); err == nil {
			t.Errorf("%s can be changed after signing", name)
		}
		if bytes.Equal(f.Statement.Canonical(), statement().Canonical()) {
			t.Errorf("%s is not in the canonical text", name)
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	ring := Ring{Fleet: DefaultFleet, Keys: []ed25519.PublicKey{public(1)}, Threshold: 1}
	foreign := statement()
	foreign.ABI = "cascade-policy/9"
	for _, c := range []struct {
		name string
		f    File
		mod  []byte
		ring Ring
		now  time.Time
		want string
	}{
		{"another module", signed(t, statement(), 1), []byte("x"), ring, now, "the module's sha256 is"},
		{"another abi", signed(t, foreign, 1), module, ring, now, "this host speaks"},
		{"too late", signed(t, statement(), 1), module, ring, time.Unix(1_790_000_001, 0), "expired at 2026-"},
		{"no ring", signed(t, statement(), 1), module, Ring{Fleet: DefaultFleet}, now, "threshold 0"},
		{"zero", File{}, module, ring, now, "fleet"},
	} {
		_, err := Verify(c.f, c.mod, configuration, c.ring, c.now)
		testkit.WantError(t, err, c.want)
	}
	if _, err := Verify(signed(t, statement(), 1), module, configuration, ring, time.Unix(1_790_000_000, 0)); err != nil {
		t.Errorf("the last second: %v", err)
	}
}

func TestMark(t *testing.T) {
	var m Mark
	at := func(gen lifecycle.Generation, name string) Statement {
		s := statement()
		s.Generation, s.Name = gen, name
		return s
	}
	for _, c := range []struct {
		gen  lifecycle.Generation
		name string
		ok   bool
	}{{5, "a", true}, {5, "a", true}, {5, "b", false}, {4, "a", false}, {9, "b", true}, {5, "a", false}, {9, "b", true}} {
		next, err := m.Admit(at(c.gen, c.name))
		if (err == nil) != c.ok || err != nil && (!errors.Is(err, ErrReplayed) || next != m) {
			t.Errorf("%d %s after %d: %v", c.gen, c.name, m.Generation, err)
		}
		m = next
	}
	b, err := json.Marshal(m)
	var back Mark
	if err != nil || json.Unmarshal(b, &back) != nil || back != m {
		t.Errorf("a mark does not survive JSON: %s", b)
	}
}

func TestStatementInvariants(t *testing.T) {
	for name, change := range map[string]func(*Statement){
		"line break in name": func(s *Statement) { s.Name = "a\ngeneration 9" },
		"space in abi":       func(s *Statement) { s.ABI = "a b" },
		"no abi":             func(s *Statement) { s.ABI = "" },
		"long name":          func(s *Statement) { s.Name = strings.Repeat("a", 65) },
		"dotted name":        func(s *Statement) { s.Name = "../x" },
		"version":            func(s *Statement) { s.Version = "1.2" },
		"leading zero":       func(s *Statement) { s.Version = "1.02.3" },
		"no pre-release":     func(s *Statement) { s.Version = "1.2.3-" },
		"no kind":            func(s *Statement) { s.Grants = nil },
		"configure":          func(s *Statement) { s.Grants = []Grant{{Kind: abi.Configure}} },
		"unknown kind":       func(s *Statement) { s.Grants = []Grant{{Kind: abi.NumKinds}} },
		"twice":              func(s *Statement) { s.Grants = []Grant{{Kind: abi.Guard}, {Kind: abi.Guard}} },
		"not in order":       func(s *Statement) { s.Grants = []Grant{{Kind: abi.Guard}, {Kind: abi.Refine}} },
		"generation":         func(s *Statement) { s.Generation = 0 },
		"negative end":       func(s *Statement) { s.NotAfter = -1 },
		"no fleet":           func(s *Statement) { s.Fleet = "" },
		"line in fleet":      func(s *Statement) { s.Fleet = "a\nb" },
	} {
		s := statement()
		change(&s)
		if s.Validate() == nil {
			t.Errorf("%s is valid", name)
		}
		if _, err := Sign(File{Statement: s}, key(1)); err == nil {
			t.Errorf("%s can be signed", name)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := testkit.Must(signed(t, statement(), 1).Encode())
	text := string(good)
	for name, bad := range map[string]string{
		"unknown field": strings.Replace(text, `"abi"`, `"root": true, "abi"`, 1),
		"more":          text + "{}",
		"format":        strings.Replace(text, "signature/3", "signature/4", 1),
		"short digest":  strings.Replace(text, statement().Digest.String(), "00", 1),
		"kind":          strings.Replace(text, `"refine"`, `"refiner"`, 1),
		"short key":     strings.Replace(text, IDOf(public(1)).String(), "00", 1),
		"golden":        strings.Replace(text, `"golden": "`, `"golden": "00`, 1),
		"no golden":     text[:strings.LastIndex(text, ",\n  \"golden\"")] + "}",
		"other golden":  strings.Replace(text, base64.StdEncoding.EncodeToString(deflate(golden)), base64.StdEncoding.EncodeToString(deflate([]byte("other"))), 1),
		"bomb":          strings.Replace(text, base64.StdEncoding.EncodeToString(deflate(golden)), base64.StdEncoding.EncodeToString(deflate(make([]byte, 5<<20))), 1),
		"torn golden":   strings.Replace(text, base64.StdEncoding.EncodeToString(deflate(golden)), base64.StdEncoding.EncodeToString(deflate(golden)[:5]), 1),
		"zero golden":   strings.Replace(text, SumOf(golden).String(), lifecycle.Digest{}.String(), 1),
		"first, with":   strings.Replace(text, "signature/3", "signature/1", 1),
		"long":          text + strings.Repeat(" ", MaxFile),
		"empty":         "",
		"null":          "null",
	} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

func TestKeysAsPEM(t *testing.T) {
	pub, sec, err := EncodeKeys(key(7))
	testkit.NoError(t, err)
	back, err := ParseSecret(sec)
	if err != nil || !back.Equal(key(7)) {
		t.Errorf("secret: %v", err)
	}
	pub2, _, _ := EncodeKeys(key(8))
	ring, err := ParsePublic(append(pub, pub2...))
	if err != nil || len(ring) != 2 || !ring[0].Equal(public(7)) || !ring[1].Equal(public(8)) {
		t.Errorf("public: %v %v", ring, err)
	}
	for _, bad := range [][]byte{nil, []byte("x"), pub} {
		if _, err := ParseSecret(bad); err == nil || bytes.Contains([]byte(err.Error()), []byte("MC4")) {
			t.Errorf("secret of %q: %v", bad, err)
		}
	}
	if _, err := ParsePublic(sec); err == nil {
		t.Error("a secret key is read as a public one")
	}
}

// FuzzDecode checks that a decoded file can be encoded and decoded again, and that a
// statement never passes for signed by a key that did not sign its canonical text.
func FuzzDecode(f *testing.F) {
	good := testkit.Must(signed(f, statement(), 1, 2).Encode())
	f.Add(good)
	f.Add([]byte(`{"format":"cascade-policy-signature/1"}`))
	first := testkit.Must(os.ReadFile("testdata/first.wasm.sig"))
	f.Add(first)
	ring := Ring{Fleet: DefaultFleet, Keys: []ed25519.PublicKey{public(1)}, Threshold: 1}
	want := []string{string(statement().Canonical())}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Decode(b)
		if err != nil {
			return
		}
		again, err := file.Encode()
		if err != nil && len(b) > MaxFile/2 {
			return // the input's compression may be better than deflate's
		}
		if err != nil {
			t.Fatalf("read and not written: %v", err)
		}
		back, err := Decode(again)
		if err != nil || !reflect.DeepEqual(back, file) {
			t.Fatalf("%+v became %+v, %v", file, back, err)
		}
		if s, err := Verify(file, module, configuration, ring, now); err == nil && !slices.Contains(want, string(s.Canonical())) {
			t.Fatalf("a statement that was not signed: %+v", s)
		}
	})
}
