package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// ErrNoModule says that a module is not stored.
var ErrNoModule = errors.New("no such module is stored")

// checkModule returns an error for bytes that do not have the hash or the size of a module.
func checkModule(sum lifecycle.Digest, code []byte) error {
	switch {
	case len(code) == 0 || len(code) > policyslots.MaxModule:
		return fmt.Errorf("module %x: %d bytes, want 1 to %d", sum[:6], len(code), policyslots.MaxModule)
	case sha256.Sum256(code) != sum:
		return fmt.Errorf("module %x: the bytes have another hash", sum[:6])
	}
	return nil
}

// PutModule stores the bytes of a policy module, durably before it returns, and refuses bytes
// whose hash is not sum. They stay for ModuleGrace, and as long as the stored object names them.
func (s *Store) PutModule(ctx context.Context, sum lifecycle.Digest, code []byte) error {
	if err := checkModule(sum, code); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	_, err := s.putPieces(ctx, Modules, hex.EncodeToString(sum[:])+"."+newID(), code)
	return err
}

// Module returns the bytes of a module, or ErrNoModule (wrapped), or another error if the stored
// bytes are damaged. The caller must not change them. A module whose PutModule was interrupted is
// not stored.
func (s *Store) Module(ctx context.Context, sum lifecycle.Digest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	sets, err := s.listSets(ctx, Modules)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("module %x: %w", sum[:6], ErrNoModule)
	for _, set := range sets {
		if got, ok := moduleOf(set); !ok || got != sum || !set.isComplete() {
			continue
		}
		code, e := s.getPieces(ctx, Modules, set.id, set.of, policyslots.MaxModule)
		if e == nil {
			if e = checkModule(sum, code); e == nil {
				return code, nil
			}
		}
		if !errors.Is(e, ErrNoBlob) { // it was put twice, and one is being collected
			err = e
		}
	}
	return nil, err
}

// moduleOf returns the digest of the module that a set of blobs is.
func moduleOf(set blobSet) (sum lifecycle.Digest, ok bool) {
	text, _, _ := strings.Cut(set.id, ".")
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(sum) {
		return sum, false
	}
	return lifecycle.Digest(raw), true
}
