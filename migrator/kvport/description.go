package kvport

import (
	"github.com/cespare/xxhash/v2"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/policies"
)

// Description describes the cache of an engine that shows its table. It never changes while the engine lives.
type Description struct {
	BlockTokens int // tokens per block, ≥ 1
	// TokenBytes is the size of a token's KV, all ranks together, as the engine states it: what a
	// link has to carry. 0 if unknown.
	TokenBytes policies.Bytes
	// Fingerprint is equal for engines that can read each other's blocks.
	Fingerprint uint64
}

// describe returns the description of a valid welcome, nil if it shows no table.
func describe(w *api.Welcome) *Description {
	if w.Table == nil {
		return nil
	}
	return &Description{BlockTokens: w.Table.BlockTokens, TokenBytes: policies.Bytes(w.Table.TokenBytes), Fingerprint: xxhash.Sum64String(w.Fingerprint)}
}
