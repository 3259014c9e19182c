package blocks

import (
	"fmt"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Limits of a Description.
const (
	maxPool        = 1 << 44 // bytes
	maxBlocks      = 1 << 31
	maxBlockTokens = 1 << 20
	maxRegions     = 1024
)

// Description describes an engine's pool. It never changes while the engine lives.
type Description struct {
	Model       string
	BlockTokens int // tokens per block, ≥ 1
	// Layout fits into PoolBytes.
	Layout    transport.Layout
	PoolBytes int64
	// TokenBytes is the size of a token's KV, all ranks together, as the engine states it: what a
	// link has to carry. 0 if unknown.
	TokenBytes policies.Bytes
	// Fingerprint is equal for engines that can read each other's blocks.
	Fingerprint uint64
}

// BlocksFor returns the number of blocks for so many tokens.
func (d Description) BlocksFor(tokens int) int {
	return (tokens + d.BlockTokens - 1) / d.BlockTokens
}

// decodeDescription validates and converts an engine's description.
func decodeDescription(d *api.Description) (Description, error) {
	bad := func(format string, args ...any) (Description, error) {
		return Description{}, fmt.Errorf("invalid description of the engine's pool: "+format, args...)
	}
	switch {
	case d.BlockTokens < 1 || d.BlockTokens > maxBlockTokens:
		return bad("block_tokens is %d", d.BlockTokens)
	case d.Blocks < 1 || d.Blocks > maxBlocks:
		return bad("blocks is %d", d.Blocks)
	case d.PoolBytes > maxPool:
		return bad("pool_bytes is %d", d.PoolBytes)
	case len(d.Regions) > maxRegions:
		return bad("%d regions", len(d.Regions))
	case d.TokenBytes > maxPool:
		return bad("token_bytes is %d", d.TokenBytes)
	}
	l := transport.Layout{Blocks: int(d.Blocks)}
	for i, r := range d.Regions {
		if max(r.GetOffset(), r.GetStride(), r.GetBytes()) > maxPool {
			return bad("region %d: offset %d, stride %d, %d bytes", i, r.GetOffset(), r.GetStride(), r.GetBytes())
		}
		l.Regions = append(l.Regions, transport.Region{Offset: int64(r.GetOffset()), Stride: int64(r.GetStride()), Bytes: int64(r.GetBytes())})
	}
	if err := l.Validate(int64(d.PoolBytes)); err != nil {
		return bad("%w", err)
	}
	return Description{
		Model: d.Model, BlockTokens: int(d.BlockTokens), Layout: l, PoolBytes: int64(d.PoolBytes),
		TokenBytes: policies.Bytes(d.TokenBytes), Fingerprint: d.Fingerprint,
	}, nil
}
