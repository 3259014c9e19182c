package sign

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// KeyID identifies a public key: the first eight bytes of its SHA-256. It only selects
// the key to verify with; it proves nothing by itself.
type KeyID [8]byte

// String returns the ID in hexadecimal.
func (k KeyID) String() string { return hex.EncodeToString(k[:]) }

// IDOf returns the ID of a key.
func IDOf(key ed25519.PublicKey) KeyID {
	sum := sha256.Sum256(key)
	return KeyID(sum[:8])
}

// Ring is the set of keys that a host trusts: Threshold different keys of Keys must sign.
//
// Invariants, checked by Validate:
//  1. every key is an ed25519 public key, and no two have the same ID,
//  2. Threshold is from 1 to the number of keys,
//  3. Fleet is the name of a fleet (CheckFleet): statements for others are refused.
type Ring struct {
	Fleet     string
	Keys      []ed25519.PublicKey
	Threshold int
}

// Validate reports the first broken invariant, or nil.
func (r Ring) Validate() error {
	if err := CheckFleet(r.Fleet); err != nil {
		return err
	}
	for i, k := range r.Keys {
		if len(k) != ed25519.PublicKeySize {
			return fmt.Errorf("keys[%d]: %d bytes, an ed25519 public key has %d", i, len(k), ed25519.PublicKeySize)
		}
		if slices.ContainsFunc(r.Keys[:i], func(o ed25519.PublicKey) bool { return IDOf(o) == IDOf(k) }) {
			return fmt.Errorf("keys[%d]: key %s is there twice: each counts once", i, IDOf(k))
		}
	}
	if r.Threshold < 1 || r.Threshold > len(r.Keys) {
		return fmt.Errorf("threshold %d: must be from 1 to the number of keys, %d", r.Threshold, len(r.Keys))
	}
	return nil
}

// ParsePublic reads the public keys of a PEM file, at least one. The file is the output
// of "openssl pkey -pubout", concatenated for several keys.
func ParsePublic(text []byte) ([]ed25519.PublicKey, error) {
	var out []ed25519.PublicKey
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("public key %d: the PEM block is a %.40q: name the file with the public key", len(out)+1, block.Type)
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("public key %d: %w", len(out)+1, err)
		}
		public, ok := key.(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("public key %d: not an ed25519 key", len(out)+1)
		}
		out = append(out, public)
	}
	if len(out) == 0 {
		return nil, errors.New(`public key: no PEM block "PUBLIC KEY" in the file`)
	}
	return out, nil
}

// ParseSecret reads a secret key from a PEM file, the output of
// "openssl genpkey -algorithm ed25519". Its errors never contain any part of the file.
func ParseSecret(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New(`secret key: no PEM block "PRIVATE KEY" in the file`)
	}
	if block.Type == "PUBLIC KEY" {
		return nil, errors.New("secret key: the file has the public key: give the one with the secret key, which the same command wrote")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("secret key: the PEM block is no PKCS #8 key")
	}
	secret, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("secret key: not an ed25519 key")
	}
	return secret, nil
}

// EncodeKeys returns a pair of keys as PEM, which ParsePublic and ParseSecret read.
func EncodeKeys(secret ed25519.PrivateKey) (public, private []byte, err error) {
	pub, err := x509.MarshalPKIXPublicKey(secret.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("public key: %w", err)
	}
	sec, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		return nil, nil, errors.New("secret key: cannot be encoded")
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: sec}), nil
}

// Sign returns the file with a signature of the signer, which replaces an earlier one of
// the same key. The signer has an ed25519 key, in memory or in hardware.
func Sign(f File, signer crypto.Signer) (File, error) {
	public, ok := signer.Public().(ed25519.PublicKey)
	if !ok {
		return File{}, errors.New("sign: not an ed25519 key")
	}
	if err := f.Statement.Validate(); err != nil {
		return File{}, fmt.Errorf("sign: %w", err)
	}
	b, err := signer.Sign(nil, f.Statement.Canonical(), crypto.Hash(0))
	if err != nil {
		return File{}, fmt.Errorf("sign with key %s: %w", IDOf(public), err)
	}
	if len(b) != ed25519.SignatureSize {
		return File{}, fmt.Errorf("sign with key %s: a signature of %d bytes", IDOf(public), len(b))
	}
	s := Signature{Key: IDOf(public), Bytes: [ed25519.SignatureSize]byte(b)}
	f.Signatures = slices.DeleteFunc(slices.Clone(f.Signatures), func(o Signature) bool { return o.Key == s.Key })
	f.Signatures = append(f.Signatures, s)
	return f, f.validate()
}
