package sign

import (
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Verify checks a file against a module, its configuration, a ring and the current time,
// and returns the statement. With the zero time it does not check the expiry. Every error
// is final: the same arguments fail again, also at a later time. Verify does not check
// that the statement is newer than the last one; Mark.Admit does.
func Verify(f File, module, configuration []byte, r Ring, now time.Time) (Statement, error) {
	s, err := VerifyStatement(f, r, now)
	if err != nil {
		return Statement{}, err
	}
	if got := lifecycle.Sum(module); got != s.Digest {
		return Statement{}, fmt.Errorf("verify %s: the module's sha256 is %s, the statement is about %s", s.Name, got, s.Digest)
	}
	if err := s.CheckConfiguration(configuration); err != nil {
		return Statement{}, fmt.Errorf("verify: %w", err)
	}
	return s, nil
}

// VerifyStatement is Verify without module and configuration. A host uses it to decide
// whether to fetch the module, which must pass Verify before it is loaded.
func VerifyStatement(f File, r Ring, now time.Time) (Statement, error) {
	if err := r.Validate(); err != nil {
		return Statement{}, fmt.Errorf("verify: ring: %w", err)
	}
	if err := f.validate(); err != nil {
		return Statement{}, fmt.Errorf("verify: %w", err)
	}
	s := f.Statement
	if s.ABI != abi.Name {
		return Statement{}, fmt.Errorf("verify %s: built for %s, this host speaks %s", s.Name, s.ABI, abi.Name)
	}
	if s.Fleet != r.Fleet {
		return Statement{}, fmt.Errorf("verify %s: signed for fleet %q, and this is fleet %q: sign it with --fleet %s", s.Name, s.Fleet, r.Fleet, r.Fleet)
	}
	if s.Expired(now) {
		return Statement{}, fmt.Errorf("verify %s: expired at %s: sign it anew", s.Name, time.Unix(s.NotAfter, 0).UTC().Format(time.RFC3339))
	}
	// Iterate over the keys, not over the signatures: each key counts once, whatever
	// key IDs the file has.
	text, good := s.Canonical(), 0
	for _, key := range r.Keys {
		id := IDOf(key)
		for _, g := range f.Signatures {
			if g.Key != id {
				continue
			}
			if !ed25519.Verify(key, text, g.Bytes[:]) {
				return Statement{}, fmt.Errorf("verify %s: the signature of key %s is wrong: the statement was changed after it was signed", s.Name, id)
			}
			good++
		}
	}
	if good < r.Threshold {
		return Statement{}, fmt.Errorf("verify %s: signed by %d keys of the ring, %d have to sign", s.Name, good, r.Threshold)
	}
	return s, nil
}

// ErrReplayed means that a statement is older than one that was admitted before.
var ErrReplayed = errors.New("older than a statement admitted before: sign a new one, with a higher generation")

// Mark identifies the newest statement that a slot has admitted. The zero Mark admits
// any. A host keeps it across restarts.
type Mark struct {
	Generation lifecycle.Generation `json:"generation"`
	Text       lifecycle.Digest     `json:"sha256"` // of the canonical text
}

// MarkOf returns the mark of a valid statement.
func MarkOf(s Statement) Mark { return Mark{s.Generation, sha256.Sum256(s.Canonical())} }

// Admit returns the new mark if the statement may follow, and otherwise m and an error
// that wraps ErrReplayed. The statement of the mark itself is admitted again, because it
// is sent again when a host reconnects; another one of the same generation is not.
func (m Mark) Admit(s Statement) (Mark, error) {
	next := MarkOf(s)
	switch {
	case next == m || next.Generation > m.Generation:
		return next, nil
	case next.Generation == m.Generation:
		return m, fmt.Errorf("%s: generation %d is taken by another statement: %w", s.Name, s.Generation, ErrReplayed)
	}
	return m, fmt.Errorf("%s: generation %d after %d: %w", s.Name, s.Generation, m.Generation, ErrReplayed)
}
