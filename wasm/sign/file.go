package sign

import (
	"bytes"
	"compress/flate"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cascadeinfer/cascade/internal/strictjson"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

const (
	// MaxFile bounds a signature file, in bytes.
	MaxFile = 16 << 10
	// MaxSignatures bounds the signatures of a file, because each costs a verification.
	MaxSignatures = 16
	// MaxGolden bounds File.Golden, in bytes; compressed, it must fit into MaxFile.
	MaxGolden = 256 << 10
)

// Signature is one key's signature of a statement's canonical text.
type Signature struct {
	Key   KeyID
	Bytes [ed25519.SignatureSize]byte
}

// File is a statement with its signatures.
type File struct {
	Statement  Statement
	Signatures []Signature // at most MaxSignatures, no key twice
	// Golden has the expected answers of the module, as a call log (package calllog).
	// Statement.Golden is its digest. Empty means no expectations.
	Golden []byte
}

// The JSON form of a file.
type (
	jsonFile struct {
		Format     string          `json:"format"`
		Statement  jsonStatement   `json:"statement"`
		Signatures []jsonSignature `json:"signatures"`
		Golden     []byte          `json:"golden,omitempty"` // by DEFLATE
	}
	jsonStatement struct {
		Fleet         string               `json:"fleet"`
		Digest        string               `json:"sha256"`
		ABI           string               `json:"abi"`
		Name          string               `json:"name"`
		Version       string               `json:"version"`
		Grants        []jsonGrant          `json:"kinds"`
		NotAfter      int64                `json:"not_after"`
		Generation    lifecycle.Generation `json:"generation"`
		Configuration string               `json:"configuration,omitempty"`
		Golden        string               `json:"golden,omitempty"`
	}
	jsonGrant struct {
		Kind   string `json:"kind"`
		Fuel   uint64 `json:"fuel"`
		Micros uint64 `json:"micros"`
		Pages  uint64 `json:"pages"`
	}
	jsonSignature struct {
		Key       string `json:"key"`
		Signature []byte `json:"signature"`
	}
)

// Encode returns the file's bytes, which Decode reads. It fails for an invalid statement,
// too many signatures, or more expectations than fit into a file.
func (f File) Encode() ([]byte, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	s := f.Statement
	out := jsonFile{Format: Format, Golden: deflate(f.Golden), Statement: jsonStatement{
		Fleet: s.Fleet, Digest: s.Digest.String(), ABI: s.ABI, Name: s.Name, Version: s.Version, NotAfter: s.NotAfter, Generation: s.Generation}}
	if s.Configuration != (lifecycle.Digest{}) {
		out.Statement.Configuration = s.Configuration.String()
	}
	if s.Golden != (lifecycle.Digest{}) {
		out.Statement.Golden = s.Golden.String()
	}
	for _, g := range s.Grants {
		out.Statement.Grants = append(out.Statement.Grants, jsonGrant{g.Kind.String(), g.Fuel, g.Micros, g.Pages})
	}
	for _, g := range f.Signatures {
		out.Signatures = append(out.Signatures, jsonSignature{g.Key.String(), g.Bytes[:]})
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("signature file: %w", err)
	}
	if len(b) >= MaxFile {
		return nil, fmt.Errorf("signature file: %d bytes, the limit is %d: let the module be tried on fewer expectations", len(b), MaxFile)
	}
	return append(b, '\n'), nil
}

// deflate compresses expectations. It returns nil for none.
func deflate(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, flate.BestCompression) // the level is valid
	_, _ = w.Write(b)                                    // a bytes.Buffer returns no errors
	_ = w.Close()
	return out.Bytes()
}

func inflate(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	out, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b)), MaxGolden+1))
	if err != nil {
		return nil, fmt.Errorf("signature file: golden: %w", err)
	}
	if len(out) == 0 {
		return nil, errors.New("signature file: golden: leave it out where there is nothing")
	}
	return out, nil
}

// Decode reads a file. It checks the format and the statement's invariants; Verify checks
// the signatures.
func Decode(b []byte) (File, error) {
	if len(b) > MaxFile {
		return File{}, fmt.Errorf("signature file: %d bytes, the limit is %d", len(b), MaxFile)
	}
	var in jsonFile
	if err := strictjson.Unmarshal(b, &in); err != nil {
		return File{}, fmt.Errorf("signature file: %w", err)
	}
	if in.Format != Format {
		return File{}, fmt.Errorf("signature file: format %.80q, this version reads %s: sign the module anew", in.Format, Format)
	}
	f, err := in.file()
	if err != nil {
		return File{}, err
	}
	return f, f.validate()
}

// file converts the JSON form. It does not check the invariants, which validate does.
func (in jsonFile) file() (File, error) {
	s := Statement{Fleet: in.Statement.Fleet, ABI: in.Statement.ABI, Name: in.Statement.Name, Version: in.Statement.Version,
		NotAfter: in.Statement.NotAfter, Generation: in.Statement.Generation}
	for name, d := range map[string]struct {
		text string
		to   *lifecycle.Digest
	}{"configuration": {in.Statement.Configuration, &s.Configuration}, "golden": {in.Statement.Golden, &s.Golden}} {
		if d.text != "" && (!fixed(d.to[:], d.text) || *d.to == lifecycle.Digest{}) {
			return File{}, fmt.Errorf("signature file: %s %.80q: write 64 hexadecimal digits, or leave it out", name, d.text)
		}
	}
	if !fixed(s.Digest[:], in.Statement.Digest) {
		return File{}, fmt.Errorf("signature file: sha256 %.80q: write 64 hexadecimal digits", in.Statement.Digest)
	}
	if len(in.Statement.Grants) > int(abi.NumKinds) || len(in.Signatures) > MaxSignatures {
		return File{}, fmt.Errorf("signature file: more than %d kinds or %d signatures", abi.NumKinds, MaxSignatures)
	}
	for _, g := range in.Statement.Grants {
		k, ok := abi.ParseKind(g.Kind)
		if !ok {
			return File{}, fmt.Errorf("signature file: kind %.80q is unknown", g.Kind)
		}
		s.Grants = append(s.Grants, Grant{k, g.Fuel, g.Micros, g.Pages})
	}
	golden, err := inflate(in.Golden)
	if err != nil {
		return File{}, err
	}
	f := File{Statement: s, Golden: golden}
	for _, g := range in.Signatures {
		var out Signature
		if !fixed(out.Key[:], g.Key) || len(g.Signature) != len(out.Bytes) {
			return File{}, fmt.Errorf("signature file: the signature of key %.80q is malformed", g.Key)
		}
		copy(out.Bytes[:], g.Signature)
		f.Signatures = append(f.Signatures, out)
	}
	return f, nil
}

func (f File) validate() error {
	if err := f.Statement.Validate(); err != nil {
		return err
	}
	if len(f.Signatures) > MaxSignatures {
		return fmt.Errorf("signature file: %d signatures, the limit is %d", len(f.Signatures), MaxSignatures)
	}
	if len(f.Golden) > MaxGolden {
		return fmt.Errorf("signature file: expectations of more than %d bytes", MaxGolden)
	}
	if SumOf(f.Golden) != f.Statement.Golden {
		return errors.New("signature file: its expectations are not those that its statement names")
	}
	for i, g := range f.Signatures {
		if slices.ContainsFunc(f.Signatures[:i], func(o Signature) bool { return o.Key == g.Key }) {
			return fmt.Errorf("signature file: key %s has signed twice", g.Key)
		}
	}
	return nil
}

// fixed decodes hexadecimal digits into dst and reports whether they fill it exactly.
func fixed(dst []byte, s string) bool {
	if len(s) != hex.EncodedLen(len(dst)) {
		return false
	}
	_, err := hex.Decode(dst, []byte(s))
	return err == nil
}
