package sign

import (
	"bytes"
	"crypto/ed25519"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestFirstFormat checks that files of the first format are still valid, have the same
// meaning, and are written unchanged.
func TestFirstFormat(t *testing.T) {
	text := testkit.Must(os.ReadFile("testdata/first.wasm.sig"))
	f := testkit.Must(Decode(text))
	want := statement()
	want.Format1, want.Configuration, want.Golden = true, lifecycle.Digest{}, lifecycle.Digest{}
	ring := Ring{Keys: []ed25519.PublicKey{public(1), public(2)}, Threshold: 2}
	for _, with := range [][]byte{nil, configuration} {
		if s, err := Verify(f, module, with, ring, now); err != nil || !reflect.DeepEqual(s, want) {
			t.Errorf("with %q: %+v, %v", with, s, err)
		}
	}
	if again, err := f.Encode(); err != nil || !bytes.Equal(again, text) {
		t.Errorf("%s, %v", again, err)
	}
	canonical, err := os.ReadFile("testdata/first.txt")
	if err != nil || !bytes.Equal(canonical, f.Statement.Canonical()) {
		t.Errorf("%s, %v", f.Statement.Canonical(), err)
	}
	// Its signatures are not valid for the second format.
	f.Statement.Format1 = false
	if _, err := Verify(f, module, nil, ring, now); err == nil {
		t.Error("a signature of the first format is good for the second")
	}
}

// TestConfigured checks that only the signed configuration is accepted.
func TestConfigured(t *testing.T) {
	ring := Ring{Keys: []ed25519.PublicKey{public(1)}, Threshold: 1}
	bare := statement()
	bare.Configuration = lifecycle.Digest{}
	for _, c := range []struct {
		s    Statement
		with string
		want string
	}{
		{statement(), string(configuration), ""},
		{statement(), "", "is given none"},
		{statement(), "other", "and is given "},
		{bare, "", ""},
		{bare, "other", "signed without a configuration"},
	} {
		_, err := Verify(signed(t, c.s, 1), module, []byte(c.with), ring, now)
		testkit.WantError(t, err, c.want)
	}
}

// TestGoldenIsCarried checks that the file has the expectations that its statement names.
func TestGoldenIsCarried(t *testing.T) {
	s := statement()
	long := bytes.Repeat([]byte("an answer, "), MaxGolden/11)
	s.Golden = SumOf(long)
	f := testkit.Must(Sign(File{Statement: s, Golden: long}, key(1)))
	text, err := f.Encode()
	if err != nil || len(text) > MaxFile {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	if back, err := Decode(text); err != nil || !bytes.Equal(back.Golden, long) {
		t.Error(err)
	}
	for name, g := range map[string][]byte{"other": []byte("x"), "none": nil, "too long": append(long, make([]byte, 100)...)} {
		if _, err := Sign(File{Statement: s, Golden: g}, key(1)); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	noise := make([]byte, MaxFile)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	s.Golden = SumOf(noise)
	if f, err = Sign(File{Statement: s, Golden: noise}, key(1)); err != nil {
		t.Fatal(err)
	}
	_, err = f.Encode()
	testkit.WantError(t, err, "fewer")
}
