package sign

import (
	"bytes"
	"crypto/ed25519"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// TestAttackOldFormats checks that files which bind no configuration, or no fleet, are
// refused, whoever signed them.
func TestAttackOldFormats(t *testing.T) {
	for _, format := range []string{"cascade-policy-signature/1", "cascade-policy-signature/2", ""} {
		text := bytes.Replace(testkit.Must(signed(t, statement(), 1).Encode()), []byte(Format), []byte(format), 1)
		_, err := Decode(text)
		testkit.WantError(t, err, "sign the module anew")
	}
	first := testkit.Must(os.ReadFile("testdata/first.wasm.sig"))
	_, err := Decode(first)
	testkit.WantError(t, err, "cascade-policy-signature/1")
}

// TestAttackOtherFleet checks that a statement for one fleet is refused by another that
// trusts the same keys, and cannot be renamed.
func TestAttackOtherFleet(t *testing.T) {
	ring := Ring{Fleet: "production", Keys: []ed25519.PublicKey{public(1)}, Threshold: 1}
	f := signed(t, statement(), 1)
	_, err := Verify(f, module, configuration, ring, now)
	testkit.WantError(t, err, `signed for fleet "default", and this is fleet "production"`)
	f.Statement.Fleet = ring.Fleet
	_, err = Verify(f, module, configuration, ring, now)
	testkit.WantError(t, err, "changed after it was signed")
	ring.Fleet = ""
	testkit.WantError(t, ring.Validate(), "fleet")
}

// TestConfigured checks that only the signed configuration is accepted.
func TestConfigured(t *testing.T) {
	ring := Ring{Fleet: DefaultFleet, Keys: []ed25519.PublicKey{public(1)}, Threshold: 1}
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
